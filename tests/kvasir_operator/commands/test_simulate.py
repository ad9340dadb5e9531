"""`kvasir simulate` on the command line."""

import json

from click.testing import CliRunner

from kvasir_operator.commands.simulate import simulate
from kvasir_operator.simulation.scenarios import named


def test_without_a_scenario_it_lists_them():
    told = CliRunner().invoke(simulate, []).output
    assert all(name in told for name in named())


def test_a_row_has_the_scenario_the_rule_and_the_figures():
    result = CliRunner().invoke(simulate, ["burst", "--json", "--by", "kvasir", "--processes", "1"])
    (line,) = result.output.splitlines()
    found = json.loads(line)
    assert (found["scenario"], found["by"]) == ("burst", "kvasir")
    assert set(found) == {
        "scenario",
        "by",
        "overshoot",
        "reversals_per_window",
        "objective_met_fraction",
        "p99_ttft_s",
    }


def test_plots_are_the_same_each_time(tmp_path):
    for folder in ("a", "b"):
        options = ["burst", "--by", "kvasir", "--processes", "1", "--plots", str(tmp_path / folder)]
        assert CliRunner().invoke(simulate, options).exit_code == 0
    assert (tmp_path / "a" / "burst.svg").read_bytes() == (tmp_path / "b" / "burst.svg").read_bytes()


def test_a_scenario_that_there_is_not_is_named():
    result = CliRunner().invoke(simulate, ["steps"])
    assert result.exit_code == 2
    assert "no scenario steps" in result.output
