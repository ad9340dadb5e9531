"""Launched steps are collected in their order, by results of their own."""

import pytest

from kvasir_runtime.core.plan import SampledTokens, StepPlan, StepResults
from kvasir_runtime.core.plan_builder import LaunchedChunk
from kvasir_runtime.core.steps_in_flight import StepInFlight, StepsInFlight
from kvasir_runtime.core.ttft_predictor import StepLoad


def launched():
    load = StepLoad(0, 0, False, False)
    chunks = [LaunchedChunk(None, 0, 4, False, False, False)]
    plans = [StepPlan(step=3, leaves=(1,)), StepPlan(step=4, leaves=(2, 5))]
    return StepsInFlight([StepInFlight(plans[0], [], load), StepInFlight(plans[1], chunks, load)])


@pytest.mark.parametrize(
    ("results", "why"),
    [
        (StepResults(step=4, sampled=()), "results of step 4, expected those of 3"),
        (StepResults(step=3, sampled=(SampledTokens(0, (5,)),)), "not one for each chunk that samples"),
    ],
)
def test_results_of_another_plan_change_nothing(results, why):
    steps = launched()
    with pytest.raises(ValueError, match=why):
        steps.take(results)
    assert len(steps) == 2


def test_they_are_taken_in_order_until_there_is_none():
    steps = launched()
    assert [steps.take(StepResults(step=step, sampled=())).plan.step for step in (3, 4)] == [3, 4]
    with pytest.raises(ValueError, match="expected those of none"):
        steps.take(StepResults(step=5, sampled=()))


def test_dropped_steps_leave_their_rows():
    steps = launched()
    assert [len(steps.chunks_of(step)) for step in (3, 4, 5)] == [0, 1, 0]
    assert steps.drop() == [1, 2, 5]
    assert not steps
