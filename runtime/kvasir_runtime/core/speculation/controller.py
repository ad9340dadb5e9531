"""How many tokens are worth drafting: as many as give the most tokens per second by measured cost and acceptance.

A step of n sequences with m drafts gives n tokens and as many more as drafts are expected to be kept. The drafts most
likely to be kept go first, of whichever sequence; m is the one of which tokens by the measured seconds of such a step
are most (goodput, after Liu et al. 2024, TurboSpec). What does not pay is left out, so that speculation ends where
steps are bound by arithmetic, and begins again where there are fewer sequences. Pure: seconds are given.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

LEVELS: Final = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 160, 200, 240)
"""Drafts of a step. Few, so that each is measured, and near one another in what they cost."""
NEWS: Final = 0.15
"""Weight of a new measurement behind the first few, of which the mean is taken."""
OUTLIER: Final = 2.0
"""A step that takes so many times its mean counts as that: something else held the processor."""
FIRST_COST: Final = 0.04
"""Of a step without drafts, what a draft adds to it before that was measured; FIRST_COST_EACH: as many drafts as there
are sequences, where that is less.
"""
FIRST_COST_EACH: Final = 0.4
STALE: Final = 32
"""Steps after which what a single one with so many drafts cost is forgotten, once: a step that something else slowed
down would keep all of as many drafts, and more, from ever being tried.
"""
LEAST_PLAIN: Final = 2
"""Steps without drafts that are measured before one has drafts."""
GAIN: Final = 1.05
"""Of tokens per second, from which on drafting begins; GOES_ON: with which it goes on."""
GOES_ON: Final = 1.01
PLAIN_EVERY: Final = 64
"""Steps with drafts after which one has none, so that the two are compared as of now."""
LEAST_REST: Final = 4
MOST_REST: Final = 256
"""Steps without drafts where none would pay if all were right: the rest doubles each time. Behind the longest the costs
of drafts are forgotten, since one slow step may have made them.
"""


class StepCosts:
    """Mean seconds of steps of pure decoding, by the number of sequences and drafts."""

    __slots__ = ("_forgotten", "_means", "_num_observed")

    def __init__(self) -> None:
        self._means: dict[int, dict[int, tuple[float, int, int]]] = {}
        """By size and level, seconds, how often they were measured, and in which step of the size last."""
        self._num_observed: dict[int, int] = {}
        self._forgotten: dict[int, set[int]] = {}
        """By size, levels that were forgotten."""

    def observe(self, num_sequences: int, num_drafts: int, elapsed_s: float) -> None:
        """A step ended."""
        size, level = size_of(num_sequences), level_of(num_drafts)
        means, now = self._means.setdefault(size, {}), self._num_observed.get(size, 0) + 1
        self._num_observed[size] = now
        known, count, _ = means.get(level, (elapsed_s, 0, now))
        news = max(NEWS, 1 / (count + 1))
        means[level] = known + news * (min(elapsed_s, OUTLIER * known) - known), count + 1, now
        forgotten = self._forgotten.setdefault(size, {0})
        for stale in [one for one, (_, count, last) in means.items() if count == 1 and now - last > STALE]:
            if stale not in forgotten:
                forgotten.add(stale)
                del means[stale]

    def seconds(self, num_sequences: int, level: int) -> float:
        """Of a step with so many drafts, from the nearest that were measured; 0 where too few without drafts were."""
        measured = self._means.get(size_of(num_sequences), {})
        plain_s, count, _ = measured.get(0, (0.0, 0, 0))
        if count < LEAST_PLAIN:
            return 0.0
        if level in measured:
            return measured[level][0]
        below = max([one for one in measured if one < level])
        above = min([one for one in measured if one > level], default=0)
        below_s = measured[below][0]
        if above:
            return below_s + (level - below) / (above - below) * (measured[above][0] - below_s)
        slope = (below_s - plain_s) / below if below else plain_s * min(FIRST_COST, FIRST_COST_EACH / num_sequences)
        return below_s + max(0.0, slope) * (level - below)

    def forget_drafts(self, num_sequences: int) -> None:
        """Keep what steps without drafts cost."""
        means = self._means.get(size_of(num_sequences), {})
        self._forgotten.pop(size_of(num_sequences), None)
        for level in [level for level in means if level]:
            del means[level]


class DraftController:
    """One for an engine."""

    def __init__(self) -> None:
        self.costs = StepCosts()
        self._drafting: dict[int, int] = {}
        """By size, steps with drafts since the last one without."""
        self._rests: dict[int, tuple[int, int]] = {}
        """By size, steps of rest left, and how long the whole rest is."""

    def rests(self, num_sequences: int) -> bool:
        """Whether the next step is without drafts, so that none need be looked for; it is counted."""
        size = size_of(num_sequences)
        left, whole = self._rests.get(size, (0, 0))
        if left:
            self._rests[size] = (left - 1, whole)
        elif self._drafting.get(size, 0) >= PLAIN_EVERY:
            self._drafting[size] = 0
            left = 1
        return left > 0 or not self.costs.seconds(num_sequences, 0)

    def is_off(self, num_sequences: int) -> bool:
        """Whether no draft would pay in steps of so many sequences, as they were measured last."""
        return self._rests.get(size_of(num_sequences), (0, 0))[0] > 0

    def counts(self, num_sequences: int, survivals: Sequence[Sequence[float]], most: int) -> list[int]:
        """How many drafts each sequence verifies in the next step.

        survivals: of those that have drafts the probability of each to be kept, falling. most: drafts of a step.
        """
        if not any(survivals):
            return [0] * len(survivals)
        size, costs = size_of(num_sequences), self.costs
        ranked = sorted([(-one, place) for place, those in enumerate(survivals) for one in those])[:most]
        plain_s = costs.seconds(num_sequences, 0)
        best_level, best = 0, GOES_ON if self._drafting.get(size) else GAIN
        kept, done, may_pay = 0.0, 0, False
        for level in LEVELS[1:]:
            if level > len(ranked):
                break
            kept -= sum([one for one, _ in ranked[done:level]])
            done = level
            speed = plain_s / costs.seconds(num_sequences, level)
            may_pay |= (1 + level / num_sequences) * speed > GAIN
            if (gain := (1 + kept / num_sequences) * speed) > best:
                best_level, best = level, gain
        counts = [0] * len(survivals)
        for _, place in ranked[:best_level]:
            counts[place] += 1
        if best_level:
            self._drafting[size] = self._drafting.get(size, 0) + 1
            self._rests.pop(size, None)
        else:
            self._drafting[size] = 0
            if not may_pay:
                self._rest(num_sequences, size)
        return counts

    def _rest(self, num_sequences: int, size: int) -> None:
        _, whole = self._rests.get(size, (0, LEAST_REST // 2))
        if whole == MOST_REST:
            self.costs.forget_drafts(num_sequences)
            whole = LEAST_REST // 2
        self._rests[size] = (2 * whole, 2 * whole)


def level_of(num_drafts: int) -> int:
    """The largest of LEVELS that is not above."""
    return LEVELS[bisect_right(LEVELS, num_drafts) - 1]


def size_of(num_sequences: int) -> int:
    """Numbers of sequences whose steps cost nearly the same: up to 8 each alone, then those within an eighth."""
    shift = max(0, num_sequences.bit_length() - 4)
    return num_sequences >> shift << shift
