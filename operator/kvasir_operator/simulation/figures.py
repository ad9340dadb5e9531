"""Figures of one run: how quick, how steady, how well served, and at what cost."""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Any, Final

from kvasir_operator.simulation.fleet import FleetRun
from kvasir_operator.simulation.scenarios import Scenario

WINDOW_S: Final = 300.0
"""The cool-down period over which reversals are counted."""


def figures(scenario: Scenario, run: FleetRun) -> dict[str, Any]:
    """Those that the scenario has a goal for and that were measured, rounded, in the order of their declaration."""
    hours = run.pod_s
    steady = scenario.steady or max(scenario.need(at) for at in _grid(scenario))
    ttfts = _ttfts(scenario, run)
    found = {
        "signal_to_pod_p95_s": round(_percentile(run.delays_s, 0.95), 1) if run.delays_s else None,
        "overshoot": round(max(run.created) / steady, 2),
        "reversals_per_window": reversals(run.targets),
        "objective_met_fraction": round(_met(scenario, run), 4),
        "p99_ttft_s": round(_percentile(ttfts, 0.99), 2),
        "replica_hours_of_static": round(hours / (steady * scenario.seconds), 3),
        "replica_hours_of_oracle": round(hours / oracle_s(scenario), 3),
    }
    return {name: value for name, value in found.items() if name in scenario.goals and value is not None}


def reversals(targets: Sequence[tuple[float, int]]) -> int:
    """Changes of direction, in the window that has most of them."""
    turns, direction = [], 0
    for (_, before), (at, after) in pairwise(targets):
        sign = 1 if after > before else -1
        if direction and sign != direction:
            turns.append(at)
        direction = sign
    return max((sum(start <= at < start + WINDOW_S for at in turns) for start in turns), default=0)


def oracle_s(scenario: Scenario) -> float:
    """Pod-seconds of one who knows the load: each pod is created a start before it is needed and leaves at once."""
    grid = list(_grid(scenario))
    needs = [scenario.need(at) for at in grid]
    ahead = max(1, round(scenario.profile.cold_start_s / (grid[1] - grid[0])))
    return sum(max(needs[i : i + ahead + 1]) for i in range(len(needs))) * (grid[1] - grid[0])


def _grid(scenario: Scenario, every: float = 5.0) -> list[float]:
    return [every * i for i in range(int(scenario.seconds / every))]


def _ttfts(scenario: Scenario, run: FleetRun) -> list[float]:
    """Seconds to the first token; of requests that still wait at the end, so far."""
    return [(a.first_at if a.first_at >= 0 else scenario.seconds) - a.request.at for a in run.requests]


def _met(scenario: Scenario, run: FleetRun) -> float:
    met = total = 0
    for active in run.requests:
        waited = (active.first_at if active.first_at >= 0 else scenario.seconds) - active.request.at
        if active.first_at < 0 and waited <= scenario.ttft_s:
            continue  # the end came before its deadline
        total += 1
        late = waited > scenario.ttft_s
        if scenario.itl_s and active.ended_at >= 0:
            late = late or (active.ended_at - active.first_at) / active.request.output > scenario.itl_s
        met += not late
    return met / total if total else 1.0


def _percentile(values: Sequence[float], fraction: float) -> float:
    """The nearest rank; 0 of none."""
    ranked = sorted(values)
    return ranked[max(0, ceil(fraction * len(ranked)) - 1)] if ranked else 0.0
