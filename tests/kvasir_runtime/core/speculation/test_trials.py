"""Trials take no more than their share, and one that could not be made yet goes on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.core.speculation.trials import MOST_SAVED, SHARE, TrialBudget


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 20.0), st.floats(0.0, 30.0)), min_size=1, max_size=400))
def test_trials_take_no_more_than_their_share_and_one_of_them(steps: list[tuple[float, float, float]]) -> None:
    """steps: seconds without a trial, what one is thought to take besides, and what it takes in the end."""
    budget, total_s, lost_s, dearest_s = TrialBudget(), 0.0, 0.0, 0.0
    for plain_s, thought_s, extra_s in steps:
        elapsed_s = plain_s
        if budget.allows(thought_s):
            budget.begins(plain_s)
            elapsed_s += extra_s
            lost_s, dearest_s = lost_s + extra_s, max(dearest_s, extra_s)
        budget.ended(elapsed_s, 1, tried=True)
        total_s += elapsed_s
        assert lost_s <= SHARE * total_s + dearest_s + 1e-6


def test_a_trial_waits_until_what_it_takes_is_saved_and_a_dear_one_until_all_is() -> None:
    budget, waited = TrialBudget(), list[int]()
    budget.ended(1.0, 1, tried=False)
    for lost_s in (0.5, 2.0, 99.0):
        budget.saved_s = 0.0
        waited.append(0)
        while not budget.allows(lost_s):
            budget.ended(1.0, 1, tried=False)
            waited[-1] += 1
    assert waited == pytest.approx([0.5 / SHARE, 2.0 / SHARE, MOST_SAVED], abs=1)


def test_what_a_trial_brings_is_there_for_the_next() -> None:
    budget = TrialBudget()
    budget.saved_s = 1.0
    budget.begins(1.0)
    budget.ended(1.5, 3, tried=True)
    assert budget.saved_s == pytest.approx(1.0 + SHARE * 1.5 + 1.5)


def test_a_trial_whose_drafts_could_not_be_made_goes_on_and_is_paid_later() -> None:
    budget = TrialBudget()
    budget.ended(1.0, 1, tried=False)
    budget.begins(1.0)
    budget.ended(4.0, 1, tried=False)
    assert budget.saved_s < -2.9
    assert budget.allows(1.0)
    assert not budget.is_spent
    budget.begins(1.0)
    budget.ended(4.0, 1, tried=True)
    assert not budget.allows(0.0)
    assert budget.is_spent
