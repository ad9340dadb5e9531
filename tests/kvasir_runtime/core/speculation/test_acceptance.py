"""Rates forget, and what was given up is tried again."""

import pytest

from kvasir_runtime.core.speculation.acceptance import (
    DOUBTED,
    FIRST,
    KEPT,
    MOST_REST,
    READ_WITH_EASE,
    UNTRIED_REST,
    AcceptanceRates,
    SequenceDrafts,
    class_of,
)
from kvasir_runtime.core.speculation.drafters import Draft

FOUND = Draft((1, 2, 3), (1.0, 1.0, 0.5), 3)


@pytest.mark.parametrize(
    ("matched", "want"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (15, 4), (16, 5), (99, 5)]
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
    for _ in range(200):
        others.verified(0, 1, 0, KEPT)
    assert own.of(0) < 0.01
    for _ in range(200):
        own.verified(0, 1, 1, KEPT)
    assert own.of(0) > 0.99


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
    assert drafts.survivals() == pytest.approx([rate, rate**2, rate**3 / 2])


def test_of_a_text_and_a_model_the_likelier_drafts():
    drafts, of_model = SequenceDrafts(AcceptanceRates()), Draft((-1, -1), (1.0, 1.0))
    drafts.look(FOUND, 3, of_model)
    assert drafts.draft == of_model
    for _ in range(6):
        drafts.rates.verified(class_of(of_model), 1, 0, KEPT)
    drafts.look(FOUND, 3, of_model)
    assert drafts.draft == FOUND
    drafts.look(Draft(), 3, of_model)
    assert drafts.draft == of_model


def test_drafts_that_a_model_has_much_to_read_for_are_doubted():
    drafts = SequenceDrafts(AcceptanceRates())
    drafts.look(Draft(), 3, Draft((-1,), (1.0,)))
    assert drafts.survivals(READ_WITH_EASE) == [FIRST[0]]
    assert drafts.survivals(READ_WITH_EASE + 1) == [DOUBTED * FIRST[0]]


@pytest.mark.parametrize(
    ("came", "reached", "right"), [((), 0, 0), ((1,), 1, 1), ((7,), 1, 0), ((1, 2, 7), 3, 2), ((1, 2, 3, 4), 3, 3)]
)
def test_drafts_of_a_text_that_were_not_verified_are_compared_with_what_came(came, reached, right):
    drafts, of_all, want = SequenceDrafts(AcceptanceRates()), AcceptanceRates(), AcceptanceRates()
    drafts.follow([9, 9], of_all)
    drafts.look(FOUND, 3)
    drafts.tries(0)
    drafts.follow([9, 9, *came], of_all)
    place = class_of(FOUND)
    want.verified(place, reached, right, KEPT)
    assert drafts.rates.of(place) == want.of(place)
    assert (of_all.of(place) > FIRST[place]) is (right / max(1, reached) > FIRST[place])


def test_drafts_of_a_text_that_were_verified_are_not_compared_again():
    drafts, of_all = SequenceDrafts(AcceptanceRates()), AcceptanceRates()
    drafts.follow([9, 9], of_all)
    drafts.look(FOUND, 3)
    drafts.tries(1)
    drafts.follow([9, 9, 7], of_all)
    assert drafts.rates.of(class_of(FOUND)) == FIRST[class_of(FOUND)]


@pytest.mark.parametrize(
    ("found", "want"), [(Draft(), [0, 1, 3, 7, MOST_REST, MOST_REST]), (FOUND, [0, 1, *[UNTRIED_REST] * 4])]
)
def test_a_text_of_which_nothing_is_verified_is_looked_at_more_and_more_rarely(found, want):
    drafts, rests = SequenceDrafts(AcceptanceRates()), []
    for _ in range(6):
        drafts.look(found, 3)
        drafts.tries(0)
        rests.append(drafts.rest)
    assert rests == want
    drafts.look(FOUND, 3)
    drafts.tries(1)
    assert drafts.rest == 0
