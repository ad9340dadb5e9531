"""The command `kvasir` in installations that hold only some of its packages."""

from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

from kvasir_api import command
from kvasir_api.option_fields import OptionsBase, option


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


@click.command("serve")
@click.argument("model")
@click.option("--max-model-len", type=click.IntRange(1))
@click.option("--otlp-sample-percent")
def _serve(**_values):
    raise click.ClickException("The model cannot be found.\nIt is gone.")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["serve", "m"], 1, "kvasir: the model cannot be found. It is gone"),
        (["serve"], 2, "kvasir: missing argument 'MODEL' (kvasir serve --help lists what there is)"),
        (
            ["serve", "m", "--max-model-length", "5"],
            2,
            (
                "kvasir: no such option '--max-model-length'; did you mean --max-model-len?"
                " (kvasir serve --help lists what there is)"
            ),
        ),
        (
            ["serve", "m", "--tensor-parallel-size", "2"],
            2,
            "kvasir: no such option '--tensor-parallel-size' (kvasir serve --help lists what there is)",
        ),
        (
            ["serve", "m", "--max-model-len", "0"],
            2,
            "kvasir: invalid value for '--max-model-len': 0 is not in the range x>=1",
        ),
        (["serv"], 2, "kvasir: no such command 'serv'; did you mean serve? (kvasir --help lists what there is)"),
        (["xyz"], 2, "kvasir: no such command 'xyz' (kvasir --help lists what there is)"),
    ],
)
def test_errors_of_all_commands_have_one_style(arguments, code, line):
    result = CliRunner().invoke(command.PlainGroup("kvasir", commands=[_serve]), arguments)
    assert (result.exit_code, result.stderr, result.stdout) == (code, line + "\n", "")


def test_a_command_that_is_not_imported_yet_is_suggested():
    result = CliRunner().invoke(command.main, ["serv"])
    assert result.stderr.startswith("kvasir: no such command 'serv'; did you mean serve?")


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
