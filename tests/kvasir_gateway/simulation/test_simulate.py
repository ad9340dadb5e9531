"""Simulated routing: what the choice by cost gains, and that it never costs more than taking turns.

Short stretches of the catalogue; `make bench-routing` runs all of it.
"""

from dataclasses import replace

import pytest

from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.simulation import simulate
from kvasir_gateway.simulation.workloads import WORKLOADS

ALL = {workload.name: workload for workload in WORKLOADS}


def figures(name, strategy, *, seconds, pickers=1):
    workload = replace(ALL[name], seconds=seconds)
    run = simulate.RoutingRun(workload, ChoicePolicy(strategy=strategy), pickers=pickers)
    run.run()
    return simulate.figures(run)


@pytest.mark.parametrize(
    ("name", "seconds"), [("one-prefix", 6), ("sequential-agents", 15), ("long-short", 8), ("documents", 8)]
)
def test_it_is_never_worse_than_taking_turns(name, seconds):
    mine, turns = (figures(name, strategy, seconds=seconds) for strategy in ("cost", "round-robin"))
    assert mine["ttft_mean_s"] <= 1.05 * turns["ttft_mean_s"]
    assert mine["reuse_fraction"] >= turns["reuse_fraction"]


def test_one_shared_prefix_makes_no_hot_spot():
    assert figures("one-prefix", "cost", seconds=6)["imbalance"] < 1.2


def test_agents_that_wait_for_their_answers_do_not_all_land_on_one_pod():
    found = figures("sequential-agents", "cost", seconds=15)
    assert found["imbalance"] < 2.0
    assert found["reuse_fraction"] > 0.9


@pytest.mark.parametrize("name", ["documents", "samples"])
def test_four_pickers_choose_as_one(name):
    one, four = (figures(name, "cost", seconds=15, pickers=pickers) for pickers in (1, 4))
    assert four["reuse_fraction"] > one["reuse_fraction"] - 0.02
    assert four["ttft_mean_s"] < 1.1 * one["ttft_mean_s"]


def test_the_same_run_gives_the_same_figures():
    assert figures("uneven", "cost", seconds=3) == figures("uneven", "cost", seconds=3)
