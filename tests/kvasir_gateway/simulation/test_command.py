"""`kvasir gateway simulate` on the command line."""

import json

from click.testing import CliRunner

from kvasir_gateway.__main__ import gateway
from kvasir_gateway.simulation.workloads import WORKLOADS


def test_without_a_workload_it_lists_them():
    shown = CliRunner().invoke(gateway, ["simulate"]).output
    assert all(workload.name in shown for workload in WORKLOADS)


def test_a_line_has_the_workload_the_strategy_and_the_figures():
    arguments = ["simulate", "sequential-agents", "--by", "round-robin", "--json", "--processes", "1"]
    (line,) = CliRunner().invoke(gateway, arguments).output.splitlines()
    found = json.loads(line)
    assert (found["workload"], found["by"], found["pickers"]) == ("sequential-agents", "round-robin", 1)
    assert found["requests"] > 100


def test_a_workload_that_there_is_not_is_named():
    result = CliRunner().invoke(gateway, ["simulate", "agents"])
    assert result.exit_code == 2
    assert "no workload agents" in result.output
