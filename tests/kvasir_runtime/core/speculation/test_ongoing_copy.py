"""A copy goes on behind one replaced token from where it was, and not where it has ended."""

import random

import numpy as np
import pytest

from kvasir_runtime.core.speculation.acceptance import KEPT, AcceptanceRates, SequenceDrafts, class_of
from kvasir_runtime.core.speculation.drafters import NO_DRAFT, Draft, NgramDrafter, SuffixDrafter
from kvasir_runtime.core.speculation.ongoing_copy import REPLACED, OngoingCopy
from kvasir_runtime.core.speculation.recent_answers import END

SOURCE = np.array([1, 2, 3, 4, 5, 6, 7, 8], dtype=np.int32)
"""Copied from its third id on."""


@pytest.mark.parametrize(
    ("gained", "want"),
    [
        ((90,), (4, 5, 6)),
        ((3, 4, 90), (6, 7, 8)),
        ((3, 90, 5), (6, 7, 8)),  # the one behind it is right already
        ((3, 4, 5, 6, 90), (8,)),
        ((3, 4), ()),  # a search finds that
        ((90, 91), ()),
        ((3, 4, 5, 6, 7, 90), ()),  # nothing is left
        ((3, 4, 5, 6, 7, 8, 9, 10), ()),
    ],
)
def test_a_copy_goes_on_behind_one_replaced_id(gained, want):
    copy = OngoingCopy()
    copy.follow(Draft((3, 4), (1.0, 1.0), 2, SOURCE), 2)
    text = np.array([1, 2, *gained], dtype=np.int32)
    draft = copy.resumed(text, len(text), 3)
    assert (draft.tokens, draft.shares) == (want, (1.0,) * len(want))
    assert draft.matched == REPLACED or not want


def test_a_copy_goes_on_behind_a_second_replaced_id_but_not_behind_two_in_a_row():
    copy = OngoingCopy()
    copy.follow(Draft((3,), (1.0,), 2, SOURCE), 2)
    copy.follow(copy.resumed(np.array([1, 2, 90]), 3, 2), 3)
    assert copy.resumed(np.array([1, 2, 90, 4, 91]), 5, 2).tokens == (6, 7)
    assert copy.resumed(np.array([1, 2, 90, 91]), 4, 2) == NO_DRAFT


@pytest.mark.parametrize("gained", [(3, 4, 90), (3, 4, 90, 50), (3, 4, 90, 91)])
def test_a_copy_of_one_answer_does_not_go_on_in_the_next(gained):
    """Behind the end of an answer another one begins that has nothing to do with it."""
    copy = OngoingCopy()
    copy.follow(Draft((3, 4), (1.0, 1.0), 2, np.array([1, 2, 3, 4, END, 50, 51, 52], dtype=np.int32)), 2)
    text = np.array([1, 2, *gained], dtype=np.int32)
    assert copy.resumed(text, len(text), 3) == NO_DRAFT


def test_nothing_goes_on_behind_a_draft_of_a_model_or_none():
    copy = OngoingCopy()
    assert copy.resumed(np.array([1, 2]), 2, 3) == NO_DRAFT
    copy.follow(Draft((3, 4), (1.0, 1.0), 4), 2)
    assert copy.resumed(np.array([1, 2, 90]), 3, 3) == NO_DRAFT


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter()])
def test_a_text_with_replaced_ids_takes_few_steps(drafter):
    """Of 300 tokens of which 12 are other ones, none next to another: as many steps have a wrong draft at most."""
    chance = random.Random(3)
    source = chance.sample(range(10_000), 300)
    answer = [20_000 + place if place % 25 == 7 else token for place, token in enumerate(source)]
    drafts, text, steps = SequenceDrafts(AcceptanceRates()), [*source, *answer[:2]], 0
    while len(text) < 2 * len(source):
        rest = answer[len(text) - len(source) :]
        drafts.history.follow(text)
        drafts.look(drafter.propose(drafts.history, 31), 31)
        tokens = drafts.draft.tokens
        right = next((place for place, pair in enumerate(zip(tokens, rest, strict=False)) if len(set(pair)) > 1), None)
        text += rest[: (len(tokens) if right is None else right) + 1]
        steps += 1
    assert steps <= 13


def test_what_is_likelier_to_be_right_is_drafted():
    """A search found another place, and has learned that what it finds is mostly wrong, or right."""
    found, text = Draft((70, 71), (1.0, 1.0), 3), [1, 2, 90]
    for accepted, want in ((0, (4, 5)), (1, (70, 71))):
        drafts = SequenceDrafts(AcceptanceRates())
        drafts.copy.follow(Draft((3,), (1.0,), 2, SOURCE), 2)
        for _ in range(20):
            drafts.rates.verified(class_of(found), 1, accepted, KEPT)
        drafts.history.follow(text)
        drafts.look(found, 2)
        assert drafts.draft.tokens == want
