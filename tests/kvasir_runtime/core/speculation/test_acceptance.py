"""Rates forget, and what was given up is tried again."""

import pytest

from kvasir_runtime.core.speculation.acceptance import (
    FIRST,
    KEPT,
    MOST_REST,
    RETRIED,
    RETRY_STEPS,
    UNTRIED_REST,
    AcceptanceRates,
    SequenceDrafts,
    class_of,
)
from kvasir_runtime.core.speculation.drafters import Draft

FOUND = Draft((1, 2, 3), (1.0, 1.0, 0.5), 3)


@pytest.mark.parametrize(
    ("matched", "want"), [(1, 0), (2, 1), (3, 1), (4, 2), (7, 2), (8, 3), (15, 3), (16, 4), (99, 4)]
)
def test_drafts_are_of_one_class_by_what_they_follow_from(matched, want):
    assert class_of(Draft((1,), (1.0,), matched)) == want


def test_a_sequence_begins_with_what_others_have_taught():
    others = AcceptanceRates()
    for _ in range(200):
        others.verified(1, 4, 4, KEPT)
    own = AcceptanceRates(others)
    assert own.of(1) == pytest.approx(1.0, abs=0.01)
    assert own.of(0) == pytest.approx(FIRST[0])


def test_a_change_is_known_after_some_verifications():
    rates = AcceptanceRates()
    for _ in range(50):
        rates.verified(1, 8, 8, KEPT)
    for _ in range(6):
        rates.verified(1, 1, 0, KEPT)
    before = rates.of(1)
    for _ in range(14):
        rates.verified(1, 1, 0, KEPT)
    assert rates.of(1) < 0.5 * before


def test_survival_falls_by_the_rate_and_the_vote():
    drafts = SequenceDrafts(AcceptanceRates())
    drafts.look(FOUND, 3)
    rate = FIRST[class_of(FOUND)]
    assert drafts.survivals(1) == pytest.approx([rate, rate**2, rate**3 / 2])


def test_drafts_that_were_not_worth_it_are_tried_again():
    drafts = SequenceDrafts(AcceptanceRates())
    for _ in range(60):
        drafts.rates.verified(class_of(FOUND), 1, 0, KEPT)
    drafts.look(FOUND, 3)
    assert sum(drafts.survivals(1)) < 0.1
    for _ in range(RETRY_STEPS):
        drafts.tries(0)
    assert drafts.rest == UNTRIED_REST
    assert drafts.survivals(1)[0] == pytest.approx(RETRIED)
    assert sum(drafts.survivals(2)) < 0.1  # not yet where two try
    drafts.tries(1)
    assert sum(drafts.survivals(1)) < 0.1


def test_a_text_without_repeats_is_looked_at_more_and_more_rarely():
    drafts, rests = SequenceDrafts(AcceptanceRates()), []
    for _ in range(6):
        drafts.look(Draft(), 3)
        rests.append(drafts.rest)
    assert rests == [1, 3, 7, 15, MOST_REST, MOST_REST]
    drafts.look(FOUND, 3)
    assert drafts.rest == 0
