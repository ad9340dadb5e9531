"""How many tokens are worth drafting: as many as give the most tokens per second by measured cost and acceptance.

A step of n sequences with m drafts gives n tokens and as many more as drafts are expected to be kept. The drafts most
likely to be kept go first, of whichever sequence; m is the one of which tokens by the measured seconds of such a step
are most (goodput, after Liu et al. 2024, TurboSpec). What does not pay is left out, so that speculation ends where
steps are bound by arithmetic, and begins again where there are fewer sequences. Pure: seconds are given.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvasir_runtime.core.speculation.trials import TrialBudget

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
ONCE: Final = 32
"""Steps after which what a single one with so many drafts cost is forgotten, once: a step that something else slowed
down would keep all of as many drafts, and more, from ever being tried.
"""
OTHER: Final = 1.25
"""Times a mean, or its inverse: of two steps in a row beyond it on one side the nearer one is the mean from then on."""
MOST_AGAIN: Final = 2
"""Steps without drafts that follow one which took another time by OTHER, so that it is known whether that stays so."""
LEAST_STALE: Final = 128
"""Steps of a size after which what it costs to have so many drafts is doubted unless it was measured again: at once
where steps without drafts take another time by OTHER. Each trial that confirms it doubles that, up to MOST_STALE.
"""
MOST_STALE: Final = 1024
LEAST_PLAIN: Final = 2
"""Steps without drafts that are measured before one has drafts."""
GAIN: Final = 1.05
"""Of tokens per second, from which on drafting begins; GOES_ON: with which it goes on."""
GOES_ON: Final = 1.01
PLAIN_EVERY: Final = 64
"""Steps with drafts after which one has none, so that the two are compared as of now."""
LEAST_REST: Final = 4
MOST_REST: Final = 256
"""Steps without drafts where none would pay if all were right: the rest doubles each time."""

Ranked = list[tuple[float, int]]


@dataclass(slots=True)
class Cost:
    """Of a step with so many drafts, in seconds. last_s: of the last step; measured: which of its size that was.

    plain_s: of those without drafts by then, or where it was another from one step to the next, what they likely took.
    stale: steps after which it is doubted.
    """

    mean_s: float
    last_s: float
    measured: int
    plain_s: float
    count: int = 0
    stale: int = LEAST_STALE

    def is_other(self, elapsed_s: float) -> int:
        """1 where a step took longer than the mean by more than OTHER, -1 where it took less, else 0."""
        return (elapsed_s > OTHER * self.mean_s) - (elapsed_s < self.mean_s / OTHER)

    def add(self, elapsed_s: float, news: float) -> None:
        """A step took so long. news: its weight."""
        side, before_s = self.is_other(elapsed_s), self.mean_s
        if side and side == self.is_other(self.last_s):
            self.mean_s = side * min(side * elapsed_s, side * self.last_s)
            self.plain_s *= self.mean_s / before_s
        else:
            self.mean_s += news * (min(elapsed_s, OUTLIER * self.mean_s) - self.mean_s)
        self.last_s = elapsed_s


class StepCosts:
    """Seconds of steps of pure decoding, by the number of sequences and drafts."""

    __slots__ = ("_costs", "_forgotten", "_num_observed")

    def __init__(self) -> None:
        self._costs: dict[int, dict[int, Cost]] = {}
        """By size and level."""
        self._num_observed: dict[int, int] = {}
        self._forgotten: dict[int, set[int]] = {}
        """By size, levels that were forgotten."""

    def observe(self, num_sequences: int, num_drafts: int, elapsed_s: float) -> None:
        """A step ended."""
        size, level = size_of(num_sequences), level_of(num_drafts)
        costs, now = self._costs.setdefault(size, {}), self._num_observed.get(size, 0) + 1
        self._num_observed[size] = now
        if (cost := costs.get(level)) is None:
            cost = costs[level] = Cost(elapsed_s, elapsed_s, now, costs[0].mean_s if 0 in costs else elapsed_s)
        if self.is_stale(num_sequences, level):
            confirmed = not cost.is_other(elapsed_s)
            cost.stale = min(MOST_STALE, 2 * cost.stale) if confirmed else LEAST_STALE
            cost.mean_s = cost.last_s = min(elapsed_s, OUTLIER * cost.mean_s)
            cost.plain_s = costs[0].mean_s
        else:
            if costs.get(0, cost).measured > cost.measured:
                cost.plain_s = costs[0].mean_s
            cost.add(elapsed_s, max(NEWS, 1 / (cost.count + 1)))
        cost.count, cost.measured = cost.count + 1, now
        forgotten = self._forgotten.setdefault(size, {0})
        for one in [one for one, each in costs.items() if each.count == 1 and now - each.measured > ONCE]:
            if one not in forgotten:
                forgotten.add(one)
                del costs[one]

    def measured(self, num_sequences: int, *, fresh: bool = False) -> dict[int, float]:
        """Seconds by level, none where too few steps without drafts were measured. fresh: of levels not stale."""
        costs = self._costs.get(size_of(num_sequences), {})
        if 0 not in costs or costs[0].count < LEAST_PLAIN:
            return {}
        if fresh:
            return {one: cost.mean_s for one, cost in costs.items() if not self.is_stale(num_sequences, one)}
        return {one: cost.mean_s * _drift(costs[0], cost) for one, cost in costs.items()}

    def seconds(self, num_sequences: int, level: int) -> float:
        """Of a step with so many drafts; 0 where too few without drafts were measured."""
        measured = self.measured(num_sequences)
        return _seconds_of(measured, num_sequences, level) if measured else 0.0

    def is_stale(self, num_sequences: int, level: int) -> bool:
        """Whether what a step with so many drafts took is of another time. Without drafts it never is."""
        size = size_of(num_sequences)
        costs = self._costs.get(size, {})
        if not level or level not in costs or 0 not in costs:
            return False
        cost = costs[level]
        return _drift(costs[0], cost) != 1 or self._num_observed[size] - cost.measured > cost.stale

    def is_surprising(self, num_sequences: int) -> bool:
        """Whether the last step without drafts took another time than those before it."""
        plain = self._costs.get(size_of(num_sequences), {}).get(0)
        return plain is not None and plain.is_other(plain.last_s) != 0


class DraftController:
    """One for an engine, or one for each way to draft. budget: what all of them have for trials."""

    def __init__(self, budget: TrialBudget | None = None) -> None:
        self.costs, self._budget = StepCosts(), budget or TrialBudget()
        self._drafting: dict[int, int] = {}
        """By size, steps with drafts since the last one without."""
        self._again: dict[int, int] = {}
        """By size, steps without drafts that were repeated in a row."""
        self._rests: dict[int, tuple[int, int]] = {}
        """By size, steps of rest left, and how long the whole rest is."""

    def rests(self, num_sequences: int) -> bool:
        """Whether the next step is without drafts, so that none need be looked for; it is counted."""
        size = size_of(num_sequences)
        left, whole = self._rests.get(size, (0, 0))
        if left:
            self._rests[size] = (left - 1, whole)
        elif self._drafting.get(size, 0) >= PLAIN_EVERY:
            self._drafting[size], self._again[size] = 0, MOST_AGAIN
            left = 1
        elif self._again.get(size, 0):
            self._again[size] -= 1
            left = int(self.costs.is_surprising(num_sequences))
        return left > 0 or not self.costs.seconds(num_sequences, 0)

    def is_off(self, num_sequences: int) -> bool:
        """Whether no draft would pay in steps of so many sequences, as they were measured last."""
        return self._rests.get(size_of(num_sequences), (0, 0))[0] > 0

    def counts(
        self,
        num_sequences: int,
        survivals: Sequence[Sequence[float]],
        most: int,
        hopes: Sequence[Sequence[float]] | None = None,
    ) -> list[int]:
        """How many drafts each sequence verifies in the next step.

        survivals: of those that have drafts the probability of each to be kept, falling. most: drafts of a step.
        hopes: the same of what was not tried for long, which is tried again where the budget allows it.
        """
        size = size_of(num_sequences)
        if not any(hopes or survivals):
            return [0] * len(survivals)
        ranked = _ranked(survivals, most)
        level, gain, may_pay = self._best(num_sequences, ranked)
        hoped = _ranked(hopes, most) if hopes else ranked
        if tried := self._trial(num_sequences, ranked, hoped, gain if level else 1.0):
            level, ranked = tried, hoped
        elif level:
            self._drafting[size] = self._drafting.get(size, 0) + 1
            self._rests.pop(size, None)
        else:
            self._drafting[size] = 0
            if not may_pay:
                _, whole = self._rests.get(size, (0, LEAST_REST // 2))
                self._rests[size] = (min(MOST_REST, 2 * whole),) * 2
        counts = [0] * len(survivals)
        for _, place in ranked[:level]:
            counts[place] += 1
        return counts

    def _best(self, num_sequences: int, ranked: Ranked) -> tuple[int, float, bool]:
        """The level of most tokens a second, how many times those without drafts, and whether any could pay."""
        measured = self.costs.measured(num_sequences)
        best_level, best = 0, GOES_ON if self._drafting.get(size_of(num_sequences)) else GAIN
        may_pay = False
        for level, kept in _levels(ranked):
            speed = measured[0] / _seconds_of(measured, num_sequences, level)
            may_pay |= (1 + level / num_sequences) * speed > GAIN
            if (gain := (1 + kept / num_sequences) * speed) > best:
                best_level, best = level, gain
        return best_level, best, may_pay

    def _trial(self, num_sequences: int, known: Ranked, hoped: Ranked, gain: float) -> int:
        """The level that would be better than what is known to gain so much, were what is hoped for true.

        0 for none, or none that the budget allows.
        """
        measured, fresh = self.costs.measured(num_sequences), self.costs.measured(num_sequences, fresh=True)
        if self._budget.is_spent or (hoped is known and len(fresh) == len(measured)):
            return 0
        pace_s = measured[0] / (num_sequences * gain)
        best_level, best = 0, GAIN * gain
        for level, kept in _levels(hoped):
            hope = (1 + kept / num_sequences) * measured[0] / _seconds_of(fresh, num_sequences, level)
            if hope <= best:
                continue
            # At worst the draft that is tried again is wrong, and so many cost what they did.
            sure = num_sequences + sum([-one for one, _ in known[:level]])
            if self._budget.allows(_seconds_of(measured, num_sequences, level) - sure * pace_s):
                best_level, best = level, hope
        if best_level:
            self._budget.begins(pace_s)
        return best_level


def _drift(plain: Cost, cost: Cost) -> float:
    """By which factor steps became slower since a cost was measured, 1 where it is within OTHER."""
    return plain.mean_s / cost.plain_s if cost is not plain and plain.is_other(cost.plain_s) else 1.0


def _seconds_of(measured: Mapping[int, float], num_sequences: int, level: int) -> float:
    """On the line between the nearest levels that were measured; behind the last from those without drafts on."""
    if level in measured:
        return measured[level]
    below = max([one for one in measured if one < level])
    above = min([one for one in measured if one > level], default=0)
    plain_s, below_s = measured[0], measured[below]
    if above:
        return below_s + (level - below) / (above - below) * (measured[above] - below_s)
    slope = (below_s - plain_s) / below if below else plain_s * min(FIRST_COST, FIRST_COST_EACH / num_sequences)
    return below_s + max(0.0, slope) * (level - below)


def _ranked(survivals: Sequence[Sequence[float]], most: int) -> Ranked:
    """Drafts, the likeliest to be kept first: less that probability, and whose they are."""
    return sorted([(-one, place) for place, those in enumerate(survivals) for one in those])[:most]


def _levels(ranked: Ranked) -> Iterator[tuple[int, float]]:
    """Each level that there are enough drafts for, and how many of these are expected to be kept."""
    kept, done = 0.0, 0
    for level in LEVELS[1:]:
        if level > len(ranked):
            return
        kept -= sum([one for one, _ in ranked[done:level]])
        done = level
        yield level, kept


def level_of(num_drafts: int) -> int:
    """The largest of LEVELS that is not above."""
    return LEVELS[bisect_right(LEVELS, num_drafts) - 1]


def size_of(num_sequences: int) -> int:
    """Numbers of sequences whose steps cost nearly the same: up to 8 each alone, then those within an eighth."""
    shift = max(0, num_sequences.bit_length() - 4)
    return num_sequences >> shift << shift
