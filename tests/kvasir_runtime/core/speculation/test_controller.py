"""As many drafts as pay, by costs that were measured."""

import pytest

from kvasir_runtime.core.speculation.controller import (
    FIRST_COST,
    LEVELS,
    MOST_REST,
    PLAIN_EVERY,
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


def test_where_no_draft_can_pay_the_rest_doubles_and_then_it_is_tried_again():
    made, rests = measured(1, {0: 1.0, 1: 3.0, 8: 9.0}), []
    for _ in range(7):
        assert made.counts(1, [SURE], 16) == [0]
        rests.append(0)
        while made.rests(1):
            rests[-1] += 1
    assert rests == [4, 8, 16, 32, 64, 128, MOST_REST]
    assert made.counts(1, [SURE], 16) == [0]
    while made.rests(1):
        pass
    assert made.counts(1, [SURE], 16) == [8]


def test_a_wrong_text_is_no_reason_to_rest():
    made = measured(1, {0: 1.0, 8: 1.2})
    assert made.counts(1, [[0.01]], 16) == [0]
    assert not made.rests(1)
