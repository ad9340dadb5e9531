"""A line through measured steps: base, slope, what cannot be told, what is forgotten."""

import pytest

from kvasir_operator.scaling.step_model import HALF_LIFE_S, StepModel


def fitted(*points, span_s=2.0):
    model = StepModel()
    for batch, seconds in points:
        model = model.faded(span_s).extended(steps=100, rows=100.0 * batch, seconds=100 * seconds)
    return model


@pytest.mark.parametrize(
    ("points", "base", "slope"),
    [
        (((10, 0.025), (30, 0.035)), 0.020, 0.0005),
        (((20, 0.030), (20, 0.030)), 0.030, 0.0),  # one size of batch tells no slope
        (((10, 0.040), (30, 0.030)), 0.035, 0.0),  # larger batches are not quicker: something else was slow
        (((10, 0.001), (30, 0.100)), 0.0, 0.0505 / 20),  # no step takes less than nothing
    ],
)
def test_a_step_is_a_base_and_a_part_for_each_sequence(points, base, slope):
    line = fitted(*points).line
    assert (line.base_s, line.slope_s) == (pytest.approx(base, rel=0.01, abs=1e-6), pytest.approx(slope, rel=0.01))


def test_what_a_batch_takes_and_which_batch_takes_so_long_agree():
    line = fitted((10, 0.025), (30, 0.035)).line
    assert line.batch_within(line.step_s(40)) == pytest.approx(40)
    assert line.batch_within(0.001) == 1.0


def test_without_a_slope_the_whole_step_grows_with_its_sequences():
    assert fitted((20, 0.030)).line.batch_within(0.015) == pytest.approx(10)


def test_steps_that_were_not_measured_bound_no_batch():
    assert StepModel().line.batch_within(0.04) == 0.0
    assert StepModel().faded(2.0).extended(steps=3, rows=9, seconds=1.0) == StepModel()


def test_old_steps_count_less():
    model = fitted((10, 0.020), (30, 0.030), span_s=HALF_LIFE_S)
    assert model.line.mean_batch == pytest.approx((0.5 * 10 + 30) / 1.5)


def test_a_month_without_steps_forgets_none():
    """What is forgotten is what weighs less than newer steps, and sums next to nothing would lose their digits."""
    model = fitted((10, 0.025), (30, 0.035))
    for _ in range(31 * 24 * 60):
        model = model.faded(60.0)
    assert model.line == pytest.approx(fitted((10, 0.025), (30, 0.035)).line)
