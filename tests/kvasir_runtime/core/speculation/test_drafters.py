"""Drafts are what the text itself suggests, by a search that is compared with a plain one."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.core.speculation.drafters import MAX_HISTORY, Draft, NgramDrafter, SuffixDrafter, TokenHistory


def history(tokens):
    made = TokenHistory()
    made.follow(tokens)
    return made


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ([1, 2, 3, 4, 9, 1, 2], Draft((3, 4, 9), (1.0, 1.0, 1.0), 2)),
        ([1, 2, 3, 1, 2, 4, 1, 2], Draft((4, 1, 2), (1.0, 1.0, 1.0), 2)),  # the last occurrence
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], Draft((3, 8, 1), (1.0, 1.0, 1.0), 3)),  # the longer one
        ([1, 2, 3], Draft()),
        ([5, 2, 5], Draft()),  # one id is not enough
        ([1], Draft()),
        ([4, 4, 4, 4], Draft((4,), (1.0,), 3)),  # what is not there yet is not drafted
    ],
)
def test_ngrams_go_on_as_the_text_did(text, want):
    assert NgramDrafter().propose(history(text), 3) == want


@pytest.mark.parametrize(
    ("text", "tokens", "shares", "matched"),
    [
        ([1, 2, 3, 4, 9, 1, 2], (3, 4, 9), (1.0, 1.0, 1.0), 2),
        # three of four went on with 5, and two of these with 6
        ([1, 2, 5, 6, 1, 2, 5, 7, 1, 2, 5, 6, 1, 2, 8, 0, 1, 2], (5, 6, 1), (0.75, 0.5, 0.5), 2),
        ([1, 2, 5, 0, 1, 2, 6, 9, 1, 2], (6, 9, 1), (0.5, 0.5, 0.5), 2),  # of as many the last
        ([1, 2, 3], (), (), 0),
    ],
)
def test_suffixes_vote(text, tokens, shares, matched):
    assert SuffixDrafter().propose(history(text), 3) == Draft(tokens, shares, matched)


def test_a_vote_that_nothing_wins_drafts_nothing():
    text = [token for number in range(20) for token in (1, 2, 100 + number)]
    assert SuffixDrafter().propose(history([*text, 1, 2]), 3).tokens == ()


TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def naive(text, least, most):
    for length in range(min(most, len(text) - 1), least - 1, -1):
        end = text[-length:]
        places = [start + length for start in range(len(text) - length) if text[start : start + length] == end]
        if places:
            return places, length
    return [], 0


@given(text=TEXTS, least=st.integers(1, 3), more=st.integers(0, 9))
def test_occurrences_are_those_of_the_longest_end(text, least, more):
    places, matched = history(text).occurrences(least, least + more)
    assert (places.tolist(), matched) == naive(text, least, least + more)


class CountedIds(np.ndarray):
    """Counts the places that are looked up."""

    looked_up = 0

    def __getitem__(self, key):
        CountedIds.looked_up += getattr(key, "size", 0)
        return np.asarray(super().__getitem__(key)) if not isinstance(key, slice) else super().__getitem__(key)


class CountedHistory(TokenHistory):
    @property
    def ids(self):
        return super().ids.view(CountedIds)


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter()])
@pytest.mark.parametrize("size", [1_000, 8_192, 32_768, 120_000])
@pytest.mark.parametrize("period", [1, 2, 40])
def test_texts_that_repeat_one_thing_take_little_work(drafter, size, period):
    text = [number % period for number in range(size)]
    made = CountedHistory()
    for start in (size // 2, size):
        made.follow(text[:start])
    CountedIds.looked_up = 0
    draft = drafter.propose(made, 15)
    assert CountedIds.looked_up <= 35_000
    assert draft.tokens[0] == size % period
    assert isinstance(drafter, NgramDrafter) or draft.tokens == tuple((size + n) % period for n in range(15))


def test_the_longest_end_is_found_behind_thousands_that_end_alike():
    passage = [9, 8, 7, 1, 5, 6]
    text = [*passage, *[2, 1] * 3_000, *passage[:4]]
    assert SuffixDrafter().propose(history(text), 2).tokens == (5, 6)


def test_a_history_follows_a_text_in_any_pieces_and_forgets_its_beginning():
    text = random.Random(1).choices(range(9), k=5 * MAX_HISTORY)
    made, end = TokenHistory(), 0
    for count in (1, 1023, 1, 70_000, 5, MAX_HISTORY + 7, 60_000, 1, 90_000):
        end += count
        made.follow(text[:end])
        assert made.length == end
        assert len(made.ids) <= 2 * MAX_HISTORY
        assert len(made.ids) >= min(end, MAX_HISTORY)
        assert made.ids.tolist() == text[end - len(made.ids) : end]
