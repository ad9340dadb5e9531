"""Guesses of what follows a text, from the text itself: what followed its end where that occurred before.

Nothing is stored but the ids; `recent_answers` looks for the same in other texts. Occurrences are found by comparing
arrays, one comparison of all ids for the last id and then of few for each one before it, or of few ends at once. Of a
text that repeats itself only the last of many occurrences are compared.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from kvasir_runtime.core.plan import UNDRAFTED

MAX_HISTORY: Final = 65_536
"""Ids at the end of a text that are searched."""
MOST_COMPARED: Final = 16_384
"""Occurrences of shorter ends that are compared for longer ones in a search; beyond, only the last MOST_PLACES."""
MOST_PLACES: Final = 256
"""Occurrences that vote."""
MOST_SIDE_BY_SIDE: Final = 64
"""Occurrences whose ends are compared in one operation; of more, one id after the other up to LONG_END ids, behind
which only the last count.
"""
LONG_END: Final = 8
LONGEST_END: Final = 32
"""Ids at the end of a text that `SuffixDrafter` looks for."""
LEAST_SHARE: Final = 0.1
"""Of occurrences that must have gone on as a draft does to its end: below, a draft is hardly ever right."""


NO_IDS: Final[NDArray[np.int32]] = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens: what may follow. shares: for each the share of occurrences that went on so far as the draft does, 1 where
    there is no vote. matched: ids at the end of the text that occurred before, 0 of a model's draft. source: the two
    ids before the draft's first where it was copied from, and all behind them; never written again.
    """

    tokens: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    matched: int = 0
    source: NDArray[np.int32] = field(default_factory=lambda: NO_IDS, compare=False, repr=False)


NO_DRAFT: Final = Draft()


class Drafter(Protocol):
    """Guesses for one sequence after another."""

    def propose(self, history: "TokenHistory", most: int) -> Draft:
        """At most so many tokens behind a text."""
        ...


class TokenHistory:
    """The last ids of one growing text as an array, of which nothing is written twice: drafts have views of it."""

    __slots__ = ("_ids", "_size", "length")

    def __init__(self) -> None:
        self._ids: NDArray[np.int32] = np.empty(1024, dtype=np.int32)
        self._size = 0
        self.length = 0
        """Of the whole text."""

    @property
    def ids(self) -> NDArray[np.int32]:
        """At most 2 * MAX_HISTORY of them, at least MAX_HISTORY where the text is as long."""
        return self._ids[: self._size]

    def follow(self, tokens: Sequence[int]) -> None:
        """Take in what a text has more than before. It never becomes shorter, nor changes."""
        fresh = np.array(tokens[max(self.length, len(tokens) - MAX_HISTORY) :], dtype=np.int32)
        kept = self._size if len(tokens) - self.length <= MAX_HISTORY else 0
        self.length = len(tokens)
        if kept + len(fresh) > 2 * MAX_HISTORY:
            kept = MAX_HISTORY - len(fresh)
        if kept < self._size or kept + len(fresh) > len(self._ids):
            grown = np.empty(min(2 * MAX_HISTORY, 2 * (kept + len(fresh))), dtype=np.int32)
            grown[:kept] = self._ids[self._size - kept : self._size]
            self._ids = grown
        self._size = kept + len(fresh)
        self._ids[kept : self._size] = fresh

    def occurrences(self, least: int, most: int) -> tuple[NDArray[np.int64], int]:
        """Where the longest end of the text that occurred before went on: places in `ids`, ascending, and its length.

        The end is of least to most ids; without such a one there are no places, and the length is 0. Of many places
        only the last are given.
        """
        ids, size = self.ids, self._size
        if size <= least:
            return np.empty(0, dtype=np.int64), 0
        equal = ids[:-1] == ids[-1]
        first = max(0, len(equal) - MOST_COMPARED) if np.count_nonzero(equal) > MOST_COMPARED else 0
        places, matched = longest_ends(ids, np.flatnonzero(equal[first:]) + first + 1, 1, ids, most)
        return (places, matched) if matched >= least else (places[:0], 0)


class ModelDrafter:
    """Leaves the ids to the runner, whose draft model chooses them when the step is launched."""

    def propose(self, history: TokenHistory, most: int) -> Draft:  # noqa: ARG002 - the model reads the runner's rows
        """What stands in the places of what will be drafted; it follows from no end of the text."""
        return Draft((UNDRAFTED,) * most, (1.0,) * most)


class NgramDrafter:
    """Goes on as the text did where its last 2 to 4 ids occurred last (prompt lookup decoding, Saxena 2023)."""

    def propose(self, history: TokenHistory, most: int) -> Draft:
        """As in `Drafter`."""
        places, matched = history.occurrences(2, 4)
        if not matched:
            return NO_DRAFT
        return elected_draft(history.ids, places[-1:], matched, most)


class SuffixDrafter:
    """Goes on as most of the text did where its longest known end, of 2 to 32 ids, occurred before.

    The vote after each further id is among the occurrences that went on alike: what a suffix tree with counts gives
    (Oliaro et al. 2024, SuffixDecoding), without the tree.
    """

    def propose(self, history: TokenHistory, most: int) -> Draft:
        """As in `Drafter`."""
        places, matched = history.occurrences(2, LONGEST_END)
        return elected_draft(history.ids, places, matched, most)


def longest_ends(
    ids: NDArray[np.int32], places: NDArray[np.int64], matched: int, text: NDArray[np.int32], most: int
) -> tuple[NDArray[np.int64], int]:
    """Of places behind the last matched ids of a text, those behind most of them, at most so many, and how many.

    places: in ids, ascending; without any, there are none, and 0. Of many only the last are compared, or given.
    """
    left, most = MOST_COMPARED, min(most, len(text))
    while matched < min(most, LONG_END) and len(places) > MOST_SIDE_BY_SIDE:
        if len(places) > max(left, MOST_PLACES):
            places = places[-MOST_PLACES:]
        left -= len(places)
        longer = places[places > matched]
        longer = longer[ids[longer - matched - 1] == text[-matched - 1]]
        if not len(longer):
            return places[-MOST_PLACES:], matched
        places, matched = longer, matched + 1
    if matched < most and len(places):
        places = places[-MOST_SIDE_BY_SIDE:]
        before = places[:, None] - np.arange(matched + 1, most + 1)
        differs = (ids[np.maximum(before, 0)] != text[len(text) - most : len(text) - matched][::-1]) | (before < 0)
        further = np.where(differs.any(axis=1), differs.argmax(axis=1), most - matched)
        places, matched = places[further == further.max()], matched + int(further.max())
    return places[-MOST_PLACES:], matched if len(places) else 0


def elected_draft(ids: NDArray[np.int32], places: NDArray[np.int64], matched: int, most: int) -> Draft:
    """As most of the text went on behind places, at most so many tokens; an id below 0 ends what is followed.

    matched: as of `Draft`.
    """
    total, room = len(places), 0
    tokens, shares = list[int](), list[float]()
    rests = ids[np.minimum(places[:, None] + np.arange(most), len(ids) - 1)].tolist()
    rooms = (len(ids) - places).tolist()  # ascending places: those with the least room are the last
    while len(tokens) < most and rests:
        column = len(tokens)
        while rooms and rooms[-1] <= column:
            rooms.pop()
            rests.pop()
        if not rests:
            break
        following = [rest[column] for rest in rests]
        token = _elected(following)
        if (count := following.count(token)) < LEAST_SHARE * total or token < 0:
            break
        if count < len(rests):
            rooms = [room for room, one in zip(rooms, following, strict=True) if one == token]
            rests = [rest for rest in rests if rest[column] == token]
        tokens.append(token)
        shares.append(count / total)
        room = rooms[-1]
    source = ids[len(ids) - room - 2 :] if tokens else NO_IDS
    return Draft(tuple(tokens), tuple(shares), matched, source)


def _elected(following: list[int]) -> int:
    """The most frequent id, of several the one that occurs last."""
    last = following[-1]
    if following.count(last) == len(following):
        return last
    counts = Counter(following)
    most = max(counts.values())
    return next(token for token in reversed(following) if counts[token] == most)
