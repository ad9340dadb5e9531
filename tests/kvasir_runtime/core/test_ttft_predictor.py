"""Predictions follow measured rates, and say how true they were."""

import pytest

from kvasir_runtime.core.ttft_predictor import KEPT, LEAST, LEAST_ADMITTED, QueuedWork, StepLoad, TtftPredictor


def full(tokens, admitted=0):
    return StepLoad(prompt_tokens=tokens, num_admitted=admitted, is_full=True, lacks_rows=False)


def lacking(admitted):
    return StepLoad(prompt_tokens=0, num_admitted=admitted, is_full=False, lacks_rows=True)


def predictor(*loads, elapsed_s=0.1):
    made = TtftPredictor()
    for load in loads:
        made.observe(load, elapsed_s)
    return made


@pytest.mark.parametrize(
    ("work", "want"),
    [
        (QueuedWork(0, 0, 0), 0.1),  # a step
        (QueuedWork(0, 500, 0), 0.6),
        (QueuedWork(2000, 500, 0), 2.6),
        (QueuedWork(2000, 500, 10), 2.6),  # ten rows come free in the second before
        (QueuedWork(2000, 500, 40), 4.6),  # forty in four seconds
    ],
)
def test_the_longer_of_prompts_and_rows_counts_and_then_its_own_prompt(work, want):
    made = predictor(*[full(100)] * 20, *[lacking(1)] * LEAST_ADMITTED)
    assert made.predict(work) == pytest.approx(want)


def test_what_was_not_measured_is_not_predicted():
    made = predictor(lacking(1))
    assert made.predict(QueuedWork(1, 0, 0)) == -1.0
    assert made.predict(QueuedWork(0, 0, 0)) == pytest.approx(0.1)


def test_rows_count_once_enough_came_free():
    made = predictor(full(100), *[lacking(1)] * (LEAST_ADMITTED - 1))
    assert made.predict(QueuedWork(100, 0, 1000)) == pytest.approx(0.2)
    made.observe(lacking(1), 0.1)
    assert made.predict(QueuedWork(100, 0, 1000)) > 90


def test_prompts_that_never_filled_a_step_take_no_more_than_steps_where_rows_are_awaited():
    made = predictor(*[lacking(1)] * (LEAST_ADMITTED - 1))
    assert made.predict(QueuedWork(100, 10, 5)) == -1.0
    made.observe(lacking(1), 0.1)
    assert made.predict(QueuedWork(100, 10, 5)) == pytest.approx(0.6)
    assert made.predict(QueuedWork(100, 10, 0)) == -1.0


def test_steps_that_nothing_waited_for_measure_no_rate():
    made = predictor(StepLoad(prompt_tokens=5, num_admitted=1, is_full=False, lacks_rows=False))
    assert made.prompt_rate == 0.0


def test_calibration_takes_enough_ratios_that_are_close():
    made = TtftPredictor()
    for _ in range(LEAST - 1):
        made.add(1.0, 1.1)
    assert not made.calibrated
    made.add(1.0, 1.1)
    assert made.calibrated
    for _ in range(LEAST // 4):
        made.add(1.0, 9.0)
    assert not made.calibrated  # the 0.9 quantile is eight times the 0.1 quantile


def test_the_last_ratios_are_kept_in_order():
    made = TtftPredictor()
    for number in range(1, KEPT + 51):
        made.add(1.0, float(number))
    assert made.ratios == tuple(float(number) for number in range(51, KEPT + 51))
    assert (made.ratio(0.0), made.ratio(1.0)) == (51.0, KEPT + 50)


def test_a_clock_that_stands_still_is_ignored():
    assert predictor(full(100), elapsed_s=0.0).prompt_rate == 0.0
