"""What a step may take: never less than a machine with constant costs takes, and not much more once it was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.core.plan import Chunk, StepPlan
from kvasir_runtime.core.step_times import UNKNOWN_S, StepTimes, step_size


def plan(*chunks):
    """A step with a chunk for each (start, num_tokens)."""
    return StepPlan(
        step=1,
        chunks=tuple(
            Chunk(row=row, start=start, num_tokens=count, samples=True) for row, (start, count) in enumerate(chunks)
        ),
    )


DECODE, PROMPT = step_size(plan((1000, 1))), step_size(plan((0, 2048)))


def test_nothing_is_known_of_the_first_step():
    times = StepTimes(compiles=False)
    assert times.expected_s(DECODE) == UNKNOWN_S
    times.observe(step_size(plan()), 1.0)
    times.observe(DECODE, 0.0)
    assert times.expected_s(DECODE) == UNKNOWN_S, "copies alone and steps without time are not counted"


def test_a_measured_size_is_bounded_by_twice_its_mean():
    times = StepTimes(compiles=True)
    for _ in range(50):
        times.observe(DECODE, 0.01)
    assert times.expected_s(DECODE) == pytest.approx(0.02)
    assert times.expected_s(PROMPT) == UNKNOWN_S, "its kernels may have to be compiled"


def test_a_step_in_which_the_process_was_stopped_is_soon_forgotten():
    times = StepTimes(compiles=False)
    times.observe(DECODE, 0.01)
    times.observe(DECODE, 60.0)
    assert times.expected_s(DECODE) > 20
    for _ in range(40):
        times.observe(DECODE, 0.01)
    assert times.expected_s(DECODE) < 0.03


def test_a_machine_with_long_steps_may_have_longer_ones():
    times = StepTimes(compiles=False)
    times.observe(DECODE, 40.0)
    assert times.expected_s(PROMPT) == 80.0


STEPS = st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 2048)), min_size=1, max_size=8)
COSTS = st.tuples(st.floats(0, 0.1), st.floats(1e-6, 1e-3), st.floats(0, 1e-8))


@given(STEPS, STEPS, COSTS)
def test_it_is_never_less_than_constant_costs_give(measured, wanted, costs):
    def seconds(*chunks):
        a_step, a_token, a_pair = costs
        pairs = sum(count * (start + count) for start, count in chunks)
        return a_step + a_token * sum(count for _, count in chunks) + a_pair * pairs

    times = StepTimes(compiles=False)
    for chunk in measured:
        times.observe(step_size(plan(chunk)), seconds(chunk))
    assert times.expected_s(step_size(plan(*wanted))) >= min(UNKNOWN_S, seconds(*wanted)) * 0.999
