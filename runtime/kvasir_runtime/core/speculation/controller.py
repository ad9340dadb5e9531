"""How many tokens are worth drafting: as many as give the most tokens per second by measured cost and acceptance.

A step of n sequences with m drafts gives n tokens and as many more as drafts are expected to be kept. The drafts most
likely to be kept go first, of whichever sequence; m is the one of which tokens by the measured seconds of such a step
are most (goodput, after Liu et al. 2024, TurboSpec). What does not pay is left out, so that speculation ends where
steps are bound by arithmetic, and begins again where there are fewer sequences. Pure: seconds are given.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

LEVELS: Final = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 160, 200, 240)
"""Drafts of a step. Few, so that each is measured, and near one another in what they cost."""
NEWS: Final = 0.15
"""Weight of a new measurement behind the first few, of which the mean is taken."""
CHANGED: Final = 1.6
"""A step that takes so many times its mean, or as much less, counts as that, since something else may have held it up;
where the next one like it does so too, the nearer of the two is the mean.
"""
FIRST_COST: Final = 0.04
"""Of a step without drafts, what a draft adds to it before that was measured; FIRST_COST_EACH: as many drafts as there
are sequences, where that is less.
"""
FIRST_COST_EACH: Final = 0.4
STALE: Final = 32
"""Steps after which what a single one with so many drafts cost is forgotten, once ever: a step that something else
slowed down would keep all of as many drafts, and more, from being tried. RENEWED: after which the costs of all drafts
are, since those of numbers that are not used any more may be of another time.
"""
RENEWED: Final = 512
READ_RENEWED: Final = 4096
"""The same where a model has to read for it."""
FIRST_LEVEL: Final = 8
"""Drafts of a step at most, or as many as sequences, before any were measured; later GROWTH times as many as were."""
GROWTH: Final = 4
FIRST_READ: Final = 1 / 16
"""Of a step's sequences, those for which a model drafts before any of its drafts were measured: it reads all that it
did not draft behind, which may be all of their tokens. DRAFTS_READ: that each of them verifies at most.
"""
DRAFTS_READ: Final = 2
LEAST_PLAIN: Final = 2
"""Steps without drafts that are measured before one has drafts."""
GAIN: Final = 1.05
"""Of tokens per second, from which on drafting begins; GOES_ON: with which it goes on."""
GOES_ON: Final = 1.01
PLAIN_EVERY: Final = 64
"""Steps with drafts after which one has none, so that the two are compared as of now. PLAIN_CHANGED: how many have none
once steps with drafts take another time, a quarter of PLAIN_EVERY steps after the last comparison or later.
"""
PLAIN_CHANGED: Final = 2
LEAST_REST: Final = 4
MOST_REST: Final = 256
"""Steps without drafts where none would pay if all were right: the rest doubles each time."""
RETRY_SHARE: Final = 1 / 6
"""Of a step without drafts, by what one draft may make it longer to be tried again every `speculation.RETRY_STEPS`;
where it adds more it is tried as much more rarely, at most MOST_RARELY times.
"""
MOST_RARELY: Final = 64


@dataclass(slots=True, eq=False)
class _Mean:
    """last: the step in which it was measured last. odd: that measurement, where it was no news yet, else 0."""

    value: float
    count: int = 0
    last: int = 0
    odd: float = 0.0

    def add(self, measured: float, now: int) -> bool:
        """Whether it is another one now."""
        self.last = now
        if self.count and not self.value / CHANGED <= measured <= self.value * CHANGED:
            if not self.odd or (self.odd > self.value) != (measured > self.value):
                self.odd = measured
                if self.count > 1:
                    self.value *= 1 + NEWS * (CHANGED - 1) if measured > self.value else 1 - NEWS * (1 - 1 / CHANGED)
                return False
            self.value = min(self.odd, measured, key=lambda one: abs(one - self.value))
            self.count, self.odd = max(2, self.count), 0.0
            return True
        self.odd = 0.0
        self.count += 1
        self.value += max(NEWS, 1 / self.count) * (measured - self.value)
        return False


class StepCosts:
    """Of steps of pure decoding, by the number of sequences: mean seconds without drafts, and for numbers of drafts as
    many times as long as those were then, so that a machine that becomes slower changes nothing.

    reads: drafts are a model's, which for a trial reads all that it did not draft behind, and of which one may cost as
    much as one for each sequence.
    """

    __slots__ = ("_forgotten", "_means", "_num_observed", "_plain", "_reads")

    def __init__(self, *, reads: bool = False) -> None:
        self._reads = reads
        self._plain: dict[int, _Mean] = {}
        self._means: dict[int, dict[int, _Mean]] = {}
        """By size and level."""
        self._num_observed: dict[int, int] = {}
        self._forgotten: dict[int, set[int]] = {}
        """By size, levels that were forgotten."""

    def observe(self, num_sequences: int, num_drafts: int, elapsed_s: float) -> bool:
        """A step ended. Whether such steps with drafts take another time than before."""
        size, level = size_of(num_sequences), level_of(num_drafts)
        plain, now = self._plain.setdefault(size, _Mean(elapsed_s)), self._num_observed.get(size, 0) + 1
        self._num_observed[size] = now
        if now % (READ_RENEWED if self._reads else RENEWED) == 0:
            self.forget_drafts(num_sequences)
        changed, means = False, self._means.setdefault(size, {})
        if not level:
            plain.add(elapsed_s, now)
        elif plain.count:
            ratio = elapsed_s / plain.value
            changed = means.setdefault(level, _Mean(ratio)).add(ratio, now)
        forgotten = self._forgotten.setdefault(size, set())
        for stale in [one for one, mean in means.items() if mean.count == 1 and now - mean.last > STALE]:
            if stale not in forgotten:
                forgotten.add(stale)
                del means[stale]
        return changed

    def seconds(self, num_sequences: int, level: int) -> float:
        """Of a step with so many drafts, from the nearest that were measured; 0 where too few without drafts were."""
        size = size_of(num_sequences)
        plain = self._plain.get(size)
        if plain is None or plain.count < LEAST_PLAIN:
            return 0.0
        return plain.value * self._ratio(num_sequences, self._means.get(size, {}), level)

    def _ratio(self, num_sequences: int, means: Mapping[int, _Mean], level: int) -> float:
        if level in means:
            return means[level].value
        below = max([one for one in means if one < level], default=0)
        above = min([one for one in means if one > level], default=0)
        lower = means[below].value if below else 1.0
        if above:
            return lower + (level - below) / (above - below) * (means[above].value - lower)
        # One draft of a model may cost as much as one for each sequence: two numbers show what each adds.
        before = max([one for one in means if one < below], default=0) if self._reads else 0
        slope = min(FIRST_COST, FIRST_COST_EACH / num_sequences)
        if before or (below and not self._reads):
            slope = (lower - (means[before].value if before else 1.0)) / (below - before)
        return lower + max(0.0, slope) * (level - below)

    def most_drafts(self, num_sequences: int) -> int:
        """Of a step, so that none is much longer than any before: what its drafts cost may not be known."""
        measured = self._means.get(size_of(num_sequences), {})
        return max(FIRST_LEVEL, num_sequences, GROWTH * max(measured, default=0))

    def most_read(self, num_sequences: int) -> int:
        """Sequences of a step that a model drafts for at most, so that it reads little where drafts may not pay."""
        measured = self._means.get(size_of(num_sequences), {})
        return GROWTH * max(measured) if measured else max(1, int(num_sequences * FIRST_READ))

    def forget_drafts(self, num_sequences: int) -> None:
        """Keep what steps without drafts cost."""
        self._means.pop(size_of(num_sequences), None)


class DraftController:
    """One for an engine. reads: as of `StepCosts`."""

    def __init__(self, *, reads: bool = False) -> None:
        self.costs = StepCosts(reads=reads)
        self._drafting: dict[int, int] = {}
        """By size, steps with drafts since the last one without."""
        self._plain_steps: dict[int, int] = {}
        """By size, steps to come without drafts, in which these are compared with them."""
        self._rests: dict[int, tuple[int, int]] = {}
        """By size, steps of rest left, and how long the whole rest is."""

    def observe(self, num_sequences: int, num_drafts: int, elapsed_s: float) -> None:
        """A step of pure decoding ended."""
        size = size_of(num_sequences)
        if self.costs.observe(num_sequences, num_drafts, elapsed_s) and self._drafting.get(size, 0) >= PLAIN_EVERY // 4:
            self._drafting[size], self._plain_steps[size] = 1, PLAIN_CHANGED

    def rarity(self, num_sequences: int) -> float:
        """As how much more rarely than others a draft is tried again by what it costs, 1 or more."""
        plain_s = self.costs.seconds(num_sequences, 0)
        added = self.costs.seconds(num_sequences, 1) / plain_s - 1 if plain_s else 0.0
        return min(MOST_RARELY, max(1.0, added / RETRY_SHARE))

    def rests(self, num_sequences: int) -> bool:
        """Whether the next step is without drafts, so that none need be looked for; it is counted."""
        size = size_of(num_sequences)
        left, whole = self._rests.get(size, (0, 0))
        if left:
            self._rests[size] = (left - 1, whole)
        elif left := self._plain_steps.pop(size, 0):
            self._plain_steps[size] = left - 1
        elif self._drafting.get(size, 0) >= PLAIN_EVERY:
            self._drafting[size] = 0
            left = 1
        return left > 0 or not self.costs.seconds(num_sequences, 0)

    def is_off(self, num_sequences: int) -> bool:
        """Whether no draft would pay in steps of so many sequences, as they were measured last."""
        return self._rests.get(size_of(num_sequences), (0, 0))[0] > 0

    def _read_few(
        self, counts: list[int], num_sequences: int, survivals: Sequence[Sequence[float]], unread: Mapping[int, int]
    ) -> None:
        """Limit a model to as many sequences as its costs are known for: those of which it has least to read.

        counts: drafts of each sequence; they change.
        """
        by_model = [place for place in unread if counts[place]]
        if len(by_model) <= (most := self.costs.most_read(num_sequences)):
            return
        each = min(DRAFTS_READ, -(-sum([counts[place] for place in by_model]) // most))
        for place in by_model:
            counts[place] = 0
        for place in sorted([one for one in unread if survivals[one]], key=unread.__getitem__)[:most]:
            counts[place] = min(each, len(survivals[place]))

    def _may_pay(self, num_sequences: int, most: int) -> bool:
        """Whether some number of drafts up to the most would pay if all were right."""
        plain_s = self.costs.seconds(num_sequences, 0)
        speeds = {level: plain_s / self.costs.seconds(num_sequences, level) for level in LEVELS[1:] if level <= most}
        return any((1 + level / num_sequences) * speed > GAIN for level, speed in speeds.items())

    def counts(
        self,
        num_sequences: int,
        survivals: Sequence[Sequence[float]],
        most: int,
        unread: Mapping[int, int] = MappingProxyType({}),
    ) -> list[int]:
        """How many drafts each sequence verifies in the next step.

        survivals: of those that have drafts the probability of each to be kept, falling. most: drafts of a step.
        unread: tokens that a model has to read before it drafts, by the place of the sequence.
        """
        if not any(survivals):
            return [0] * len(survivals)
        size, costs = size_of(num_sequences), self.costs
        as_known = min(most, costs.most_drafts(num_sequences))
        ranked = sorted([(-one, place) for place, those in enumerate(survivals) for one in those])[:as_known]
        plain_s = costs.seconds(num_sequences, 0)
        best_level, best = 0, GOES_ON if self._drafting.get(size) else GAIN
        kept, done = 0.0, 0
        for level in LEVELS[1:]:
            if level > len(ranked):
                break
            kept -= sum([one for one, _ in ranked[done:level]])
            done = level
            speed = plain_s / costs.seconds(num_sequences, level)
            if (gain := (1 + kept / num_sequences) * speed) > best:
                best_level, best = level, gain
        counts = [0] * len(survivals)
        for _, place in ranked[:best_level]:
            counts[place] += 1
        self._read_few(counts, num_sequences, survivals, unread)
        if best_level:
            self._drafting[size] = self._drafting.get(size, 0) + 1
            self._rests.pop(size, None)
        else:
            self._drafting[size] = 0
            if not self._may_pay(num_sequences, most if unread else len(ranked)):
                _, whole = self._rests.get(size, (0, LEAST_REST // 2))
                self._rests[size] = (min(MOST_REST, 2 * whole),) * 2
        return counts


def level_of(num_drafts: int) -> int:
    """The largest of LEVELS that is not above."""
    return LEVELS[bisect_right(LEVELS, num_drafts) - 1]


def size_of(num_sequences: int) -> int:
    """Numbers of sequences whose steps cost nearly the same: up to 8 each alone, then those within an eighth."""
    shift = max(0, num_sequences.bit_length() - 4)
    return num_sequences >> shift << shift
