"""Plans in flight: how long they may take together, and what their ends teach."""

from kvasir_runtime.core.plan import Chunk, StepPlan
from kvasir_runtime.core.step_times import UNKNOWN_S
from kvasir_runtime.engine.launched_plans import LaunchedPlans


def plan(step):
    return StepPlan(step=step, chunks=(Chunk(row=0, start=100, num_tokens=1, samples=True),))


def test_they_are_taken_in_order_and_their_seconds_do_not_overlap():
    launched = LaunchedPlans(compiles=True)
    for step, now in ((1, 0.0), (2, 1.0)):
        launched.add(launched.sized(plan(step), now))
    assert launched.expected_s() == 2 * UNKNOWN_S
    first, second = launched.take(), launched.take()
    assert (first.plan.step, second.plan.step, len(launched)) == (1, 2, 0)
    assert launched.collected(first, 4.0) == 4.0
    assert launched.collected(second, 6.0) == 2.0, "it began when the one before had ended"


def test_what_was_measured_is_expected_of_the_next():
    launched = LaunchedPlans(compiles=False)
    launched.collected(launched.sized(plan(1), 1.0), 1.5)
    assert launched.expected_s(launched.sized(plan(2), 2.0)) == 1.0
    assert launched.expected_s() == 0.0, "it was not launched"
