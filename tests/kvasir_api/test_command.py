"""The command `kvasir` in installations that hold only some of its packages."""

from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

from kvasir_api import command
from kvasir_api.options import OptionsBase, option


def entry(value):
    return EntryPoint(name="serve", value=value, group=command.GROUP)


def test_command_of_an_absent_package_says_what_is_missing():
    absent = command.load(entry("no_such_package.commands:serve"))
    result = CliRunner().invoke(absent, ["model", "--port", "1", "--help"])
    assert result.exit_code == 1
    assert result.output == "Error: Not in this installation: there is no module no_such_package.\n"


def test_what_is_no_command_is_not_taken_for_one():
    assert command.load(entry("json:dumps")) is None


def test_installed_command_is_loaded():
    assert command.load(entry("kvasir_api.command:main")) is command.main


def test_help_lists_what_is_not_installed_too():
    result = CliRunner().invoke(command.main, ["--help"])
    assert result.exit_code == 0
    assert "serve" in result.output


@pytest.mark.parametrize("value", ["1e999", "-inf", "nan", "much"])
def test_fraction_that_is_no_number_is_refused_in_a_line(value):
    with pytest.raises(click.BadParameter, match=r"is not a number between 0\.01 and 0\.99"):
        command.Fraction().convert(value, None, None)


class Numbers(OptionsBase):
    """Options of each number that a command may have."""

    period: float = option(0.5, "A time.", unit="seconds", ge=0.05, le=60)
    port_number: int = option(80, "A port.", ge=1)


def test_options_of_a_model_are_parsed_with_its_bounds():
    seen = []
    made = click.Command(
        "numbers",
        params=list(command.click_options(Numbers)),
        callback=lambda **values: seen.append(command.parse(Numbers, values)),
    )
    assert CliRunner().invoke(made, ["--period", "1.5", "--port-number", "8"]).exit_code == 0
    assert seen == [Numbers(period=1.5, port_number=8)]
    refused = CliRunner().invoke(made, ["--period", "0.01"])
    assert "0.01 is not in the range 0.05<=x<=60" in refused.output
    with pytest.raises(click.UsageError, match="port_number: Input should be greater than or equal to 1"):
        command.parse(Numbers, {"port_number": 0})
