"""Click options of an options model, and the model of what click read."""

import click
import pytest
from click.testing import CliRunner

from kvasir_api import option_parser
from kvasir_api.option_fields import OptionsBase, option


@pytest.mark.parametrize("value", ["1e999", "-inf", "nan", "much"])
def test_fraction_that_is_no_number_is_refused_in_a_line(value):
    with pytest.raises(click.BadParameter, match=r"is not a number between 0\.01 and 0\.99"):
        option_parser.Fraction().convert(value, None, None)


class Numbers(OptionsBase):
    """Options of each number that a command may have."""

    period: float = option(0.5, "A time.", unit="seconds", ge=0.05, le=60)
    port_number: int = option(80, "A port.", ge=1)


def test_options_of_a_model_are_parsed_with_its_bounds():
    seen = []
    made = click.Command(
        "numbers",
        params=list(option_parser.click_options(Numbers)),
        callback=lambda **values: seen.append(option_parser.parse(Numbers, values)),
    )
    assert CliRunner().invoke(made, ["--period", "1.5", "--port-number", "8"]).exit_code == 0
    assert seen == [Numbers(period=1.5, port_number=8)]
    refused = CliRunner().invoke(made, ["--period", "0.01"])
    assert "0.01 is not in the range 0.05<=x<=60" in refused.output
    with pytest.raises(click.UsageError, match="port_number: Input should be greater than or equal to 1"):
        option_parser.parse(Numbers, {"port_number": 0})
