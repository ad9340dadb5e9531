"""As many drafts as pay, by costs that were measured."""

import pytest

from kvasir_runtime.core.speculation.controller import (
    FIRST_COST,
    LEVELS,
    MOST_REST,
    PLAIN_CHANGED,
    PLAIN_EVERY,
    RENEWED,
    STALE,
    DraftController,
    StepCosts,
    level_of,
    size_of,
)

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
    costs.forget_drafts(2)
    assert costs.seconds(2, 5) == pytest.approx(1 + 5 * FIRST_COST)


def test_what_a_single_step_cost_is_forgotten_once():
    costs = StepCosts()
    for _ in range(2):
        costs.observe(1, 0, 1.0)
    for want in (1 + 4 * FIRST_COST, 3.0):
        costs.observe(1, 4, 3.0)
        assert costs.seconds(1, 8) == pytest.approx(5.0)
        for _ in range(STALE + 1):
            costs.observe(1, 0, 1.0)
        assert costs.seconds(1, 4) == pytest.approx(want)


@pytest.mark.parametrize(
    ("others", "want"),
    [
        ([50.0], 1.09),  # something else held it up
        ([50.0, 1.0, 50.0], 1.1734),
        ([50.0, 0.1], 1.0287),
        ([50.0, 3.0], 3.0),  # it is the machine: the nearer one counts
        ([0.2, 0.5], 0.5),
        ([1.2], 1.0 + 0.15 * 0.2),  # within what steps differ by
    ],
)
def test_a_mean_becomes_another_one_with_two_steps_in_a_row(others, want):
    costs = StepCosts()
    for _ in range(20):
        costs.observe(1, 0, 1.0)
    for elapsed_s in others:
        costs.observe(1, 0, elapsed_s)
    assert costs.seconds(1, 0) == pytest.approx(want, rel=1e-4)


def test_steps_of_two_speeds_have_a_mean_between_them():
    costs = StepCosts()
    for number in range(200):
        costs.observe(1, 0, 1.0 + number % 2)
    assert 1.2 < costs.seconds(1, 0) < 1.7


def test_a_few_drafts_keep_no_large_batch_from_many():
    """As of tokens that a grammar forced."""
    made = measured(128, {0: 1.0, 2: 1.005})
    assert sum(made.counts(128, [[0.95]] * 128, 240)) == 120


def test_costs_of_drafts_follow_a_machine_that_becomes_slower():
    costs = measured(1, {0: 1.0, 8: 1.5}).costs
    for _ in range(2):
        costs.observe(1, 0, 3.0)
    assert [costs.seconds(1, level) for level in (0, 4, 8)] == pytest.approx([3.0, 3.75, 4.5])


def test_costs_of_drafts_are_forgotten_every_so_often():
    costs = measured(1, {0: 1.0, 8: 9.0}).costs
    for _ in range(RENEWED):
        costs.observe(1, 0, 1.0)
    assert costs.seconds(1, 8) == pytest.approx(1 + 8 * FIRST_COST)


def test_where_drafts_take_another_time_steps_without_are_measured_too():
    made = measured(1, {0: 1.0, 8: 1.2})
    for _ in range(PLAIN_EVERY // 4):
        assert made.counts(1, [SURE], 16) == [8]
    made.observe(1, 8, 3.0)
    assert not made.rests(1)
    made.observe(1, 8, 3.1)
    assert [made.rests(1) for _ in range(PLAIN_CHANGED + 1)] == [True] * PLAIN_CHANGED + [False]
    for _ in range(2):
        made.observe(1, 8, 1.2)
    assert not made.rests(1)  # not so soon again


@pytest.mark.parametrize(
    ("costs", "want"), [({}, 1.0), ({0: 1.0, 1: 1.1}, 1.0), ({0: 1.0, 1: 1.5}, 3.0), ({0: 1.0, 1: 99.0}, 64.0)]
)
def test_a_draft_that_costs_more_is_tried_again_more_rarely(costs, want):
    assert measured(1, costs).rarity(1) == pytest.approx(want)


def test_the_first_tries_have_few_drafts():
    long = [[0.99] * 31]
    made = measured(1, {0: 1.0})
    for want in (8, 30):
        assert made.counts(1, long, 31) == [want]
        made.observe(1, want, 1.0)
    assert sum(measured(32, {0: 1.0}).counts(32, [SURE] * 32, 240)) == 30


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


def test_where_no_draft_can_pay_the_rest_doubles_and_then_it_is_tried_again():
    made, rests = measured(1, {0: 1.0, 1: 3.0, 8: 9.0}), []
    while made.counts(1, [SURE], 16) == [0]:
        rests.append(0)
        while made.rests(1):
            made.observe(1, 0, 1.0)
            rests[-1] += 1
    assert rests == [4, 8, 16, 32, 64, 128, MOST_REST]  # the last one ends behind step RENEWED


def test_a_wrong_text_is_no_reason_to_rest():
    made = measured(1, {0: 1.0, 8: 1.2})
    assert made.counts(1, [[0.01]], 16) == [0]
    assert not made.rests(1)
