"""What a run is judged by."""

import pytest

from kvasir_operator.simulation import traffic
from kvasir_operator.simulation.figures import figures, oracle_s, reversals
from kvasir_operator.simulation.fleet import FleetRun
from kvasir_operator.simulation.pod_model import ActiveRequest
from kvasir_operator.simulation.scenarios import Scenario
from kvasir_operator.simulation.traffic import SimulatedRequest

SCENARIO = Scenario(name="a", about="", load=traffic.step(0.5, 1.5, at=300), most_load=1.5, seconds=600.0, ttft_s=5.0)


def answered(at, first, *, ended=-1.0, output=10):
    request = SimulatedRequest(number=0, at=at, prompt=1, output=output)
    return ActiveRequest(request=request, first_at=first, ended_at=ended)


@pytest.mark.parametrize(
    ("targets", "most"),
    [
        ([(0, 1)], 0),
        ([(0, 1), (10, 2), (20, 3)], 0),
        ([(0, 1), (10, 2), (400, 1)], 1),
        ([(0, 1), (10, 2), (20, 1), (30, 2)], 2),
        ([(0, 1), (10, 2), (400, 1), (800, 2)], 1),
    ],
)
def test_reversals_in_the_window_that_has_most(targets, most):
    assert reversals(targets) == most


def test_an_oracle_has_each_pod_a_start_before_it_is_needed():
    assert SCENARIO.need(0) == 1
    assert SCENARIO.need(300) == 2
    assert oracle_s(SCENARIO) == 300 + 40 + 2 * 300 - 40 + 40  # two from a start before the step on


def test_figures_of_a_run():
    run = FleetRun(created=[1, 3, 2], delays_s=[2.0, 8.0], pod_s=900.0, targets=[(0.0, 1), (5.0, 3)])
    run.requests = [answered(10, 11), answered(20, 30), answered(590, -1), answered(598, -1)]
    found = figures(SCENARIO, run)
    assert found == {
        "signal_to_pod_p95_s": 8.0,
        "overshoot": 1.5,
        "reversals_per_window": 0,
        "objective_met_fraction": 0.3333,  # one late, one without an answer, one whose time is not over
        "p99_ttft_s": 10,
        "replica_hours_of_static": 0.75,
        "replica_hours_of_oracle": round(900 / oracle_s(SCENARIO), 3),
    }


def test_a_row_omits_what_its_scenario_has_no_goal_for():
    other = Scenario(name="b", about="", load=lambda _: 1.0, most_load=1.0, seconds=60.0, goals=("overshoot",))
    assert list(figures(other, FleetRun(created=[1]))) == ["overshoot"]


def test_slow_answers_miss_an_objective_between_tokens():
    scenario = Scenario(name="c", about="", load=lambda _: 1.0, most_load=1.0, seconds=60.0, itl_s=0.1)
    run = FleetRun(created=[1], requests=[answered(0, 1, ended=3.0), answered(0, 1, ended=1.5)])
    assert figures(scenario, run)["objective_met_fraction"] == 0.5


def test_a_row_omits_what_was_not_measured():
    assert "signal_to_pod_p95_s" not in figures(SCENARIO, FleetRun(created=[1], pod_s=900.0, targets=[(0.0, 1)]))
