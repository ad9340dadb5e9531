"""As many drafts as pay, by costs that were measured."""

import pytest

from kvasir_runtime.core.speculation.controller import (
    FIRST_COST,
    LEAST_STALE,
    LEVELS,
    MOST_REST,
    MOST_STALE,
    ONCE,
    PLAIN_EVERY,
    DraftController,
    StepCosts,
    level_of,
    size_of,
)
from kvasir_runtime.core.speculation.trials import TrialBudget

SURE = [1.0] * 8


def measured(num_sequences, costs):
    made = DraftController()
    for num_drafts, elapsed_s in costs.items():
        for _ in range(3):
            made.costs.observe(num_sequences, num_drafts, elapsed_s)
    return made


def test_levels_are_near_one_another():
    assert all(level_of(level) == level for level in LEVELS)
    assert [level_of(count) for count in (7, 9, 11, 239, 999)] == [6, 8, 10, 200, 240]


@pytest.mark.parametrize(
    ("count", "want"), [(1, 1), (8, 8), (15, 15), (16, 16), (17, 16), (31, 30), (64, 64), (71, 64)]
)
def test_numbers_of_sequences_within_an_eighth_share_their_costs(count, want):
    assert size_of(count) == want


def test_costs_between_measured_ones_are_on_a_line_and_beyond_them_too():
    costs = StepCosts()
    assert costs.seconds(2, 0) == 0
    for _ in range(2):
        costs.observe(2, 0, 1.0)
    assert costs.seconds(2, 5) == pytest.approx(1 + 5 * FIRST_COST)
    costs.observe(2, 4, 2.0)
    assert [costs.seconds(2, level) for level in (2, 4, 8)] == pytest.approx([1.5, 2.0, 3.0])


def test_what_a_single_step_cost_is_forgotten_once():
    costs = StepCosts()
    for _ in range(2):
        costs.observe(1, 0, 1.0)
    for want in (1 + 4 * FIRST_COST, 3.0):
        costs.observe(1, 4, 3.0)
        assert costs.seconds(1, 8) == pytest.approx(5.0)
        for _ in range(ONCE + 1):
            costs.observe(1, 0, 1.0)
        assert costs.seconds(1, 4) == pytest.approx(want)


def test_one_slow_step_moves_a_mean_by_a_share_of_itself():
    costs = StepCosts()
    for _ in range(20):
        costs.observe(1, 0, 1.0)
    costs.observe(1, 0, 50.0)
    assert costs.seconds(1, 0) == pytest.approx(1.15)


@pytest.mark.parametrize(
    ("num_sequences", "costs", "survivals", "want"),
    [
        (1, {0: 1.0, 8: 1.0}, [SURE], [8]),  # bound by memory: all of them
        (1, {0: 1.0, 8: 9.0}, [SURE], [0]),  # each costs as much as a step
        (1, {0: 1.0, 8: 1.4}, [[0.5**place for place in range(1, 9)]], [3]),  # (1 + 0.875) / 1.15 is most
        (2, {0: 1.0, 8: 1.4}, [[0.9, 0.8, 0.7], [0.1, 0.01]], [3, 0]),  # the likeliest first, whose they may be
        (2, {0: 1.0, 8: 1.4}, [[], [0.02]], [0, 0]),
    ],
)
def test_drafts_are_as_many_as_give_most_tokens_a_second(num_sequences, costs, survivals, want):
    assert measured(num_sequences, costs).counts(num_sequences, survivals, 16) == want


def test_no_draft_before_steps_without_were_measured():
    made = DraftController()
    assert made.rests(1)
    made.costs.observe(1, 0, 1.0)
    made.costs.observe(1, 0, 1.0)
    assert not made.rests(1)


def test_a_step_without_drafts_comes_every_so_often():
    made = measured(1, {0: 1.0, 8: 1.0})
    for _ in range(PLAIN_EVERY):
        assert not made.rests(1)
        assert made.counts(1, [SURE], 16) == [8]
    assert made.rests(1)
    assert not made.rests(1)


def test_where_no_draft_can_pay_the_rest_doubles():
    made, rests = measured(1, {0: 1.0, 1: 3.0, 8: 9.0}), []
    for _ in range(8):
        assert made.counts(1, [SURE], 16) == [0]
        rests.append(0)
        while made.rests(1):
            rests[-1] += 1
    assert rests == [4, 8, 16, 32, 64, 128, MOST_REST, MOST_REST]


def plain_steps(made, budget, count, elapsed_s=1.0):
    for _ in range(count):
        made.costs.observe(1, 0, elapsed_s)
        budget.ended(elapsed_s, 1, tried=False)


def test_what_was_measured_long_ago_is_tried_again_where_the_budget_allows_it():
    """Each draft takes a step, half of them are right: two take 1.25 steps for nothing, and 1.29 are saved by then."""
    budget = TrialBudget()
    made = DraftController(budget)
    for _ in range(3):
        made.costs.observe(1, 0, 1.0)
        made.costs.observe(1, 8, 9.0)
    halves = [[0.5**place for place in range(1, 9)]]
    plain_steps(made, budget, LEAST_STALE)
    assert made.counts(1, halves, 16) == [0]
    plain_steps(made, budget, 1)
    assert made.costs.is_stale(1, 8)
    assert made.costs.seconds(1, 8) == 9.0
    assert made.counts(1, halves, 16) == [2]
    made.costs.observe(1, 2, 1.1)
    budget.ended(1.1, 1, tried=True)
    assert made.counts(1, halves, 16) == [2]  # by what it costs now


def test_what_is_confirmed_is_doubted_half_as_often():
    costs, times = measured(1, {0: 1.0, 8: 9.0}).costs, []
    for _ in range(6):
        times.append(0)
        while not costs.is_stale(1, 8):
            costs.observe(1, 0, 1.0)
            times[-1] += 1
        costs.observe(1, 8, 9.0)
    assert times == [LEAST_STALE + 1, 257, 513, MOST_STALE + 1, MOST_STALE + 1, MOST_STALE + 1]


@pytest.mark.parametrize(("now_s", "want"), [(0.7, True), (0.9, False), (1.2, False), (1.5, True)])
def test_where_steps_without_drafts_take_another_time_all_others_are_doubted(now_s, want):
    costs = measured(1, {0: 1.0, 8: 3.0}).costs
    for _ in range(30):
        costs.observe(1, 0, now_s)
    assert costs.is_stale(1, 8) is want
    assert costs.measured(1) == pytest.approx({0: now_s, 8: 3.0 * now_s if want else 3.0}, rel=0.01)
    assert list(costs.measured(1, fresh=True)) == ([0] if want else [0, 8])


@pytest.mark.parametrize(
    ("steps", "want"), [([5.0], 1.15), ([5.0, 5.0], 5.0), ([5.0, 3.0], 3.0), ([5.0, 1.0], 1.1275), ([0.4, 0.5], 0.5)]
)
def test_of_two_steps_in_a_row_that_took_another_time_the_nearer_one_counts(steps, want):
    costs = StepCosts()
    for _ in range(10):
        costs.observe(1, 0, 1.0)
    for elapsed_s in steps:
        costs.observe(1, 0, elapsed_s)
    assert costs.seconds(1, 0) == pytest.approx(want)


@pytest.mark.parametrize(("plain_s", "want"), [([1.0], 1), ([3.0, 3.0], 2), ([3.0, 1.0], 2), ([3.0, 9.0, 27.0], 3)])
def test_a_step_without_drafts_that_surprises_is_repeated_at_once(plain_s, want):
    made, steps = measured(1, {0: 1.0, 8: 1.0}), 0
    for _ in range(PLAIN_EVERY):
        assert not made.rests(1)
        assert made.counts(1, [SURE], 16) == [8]
    while made.rests(1):
        made.costs.observe(1, 0, plain_s[steps])
        steps += 1
    assert steps == want


@pytest.mark.parametrize(("saved_s", "want"), [(0.0, 0), (0.31, 0), (0.33, 1)])
def test_a_draft_that_is_hoped_for_is_tried_where_the_budget_allows_it(saved_s, want):
    budget = TrialBudget()
    made = DraftController(budget)
    for _ in range(3):
        made.costs.observe(1, 0, 1.0)
        made.costs.observe(1, 1, 1.32)
    budget.ended(1.0, 1, tried=False)
    budget.saved_s = saved_s
    assert made.counts(1, [[0.0]], 16, [[0.7]]) == [want]


def test_a_wrong_text_is_no_reason_to_rest():
    made = measured(1, {0: 1.0, 8: 1.2})
    assert made.counts(1, [[0.01]], 16) == [0]
    assert not made.rests(1)
