"""Which running requests a step computes where as many steps as there are stages may be in flight, each in one of them.

Owned by the scheduler. A token is not known before its step has left the last stage, so steps in flight are of disjoint
requests. They go through the stages one behind the other and wait for the slowest of them, so the requests that decode
are divided into sets of as many rows, as they come and go.

A stage reads its weights for each set. Where that is most of a step, as with few requests or where stages share what
they read by, and where rank 0 has much to do for each step, sets cost as much as they gain or more. So other numbers of
sets are tried now and then, and the one that gave most tokens a second is kept. There are no more sets than stages:
then all stages compute, and a further set would read all weights once more. Knows no clock: seconds are given.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.plan_builder import LaunchedChunk, PlanBuilder
from kvasir_runtime.core.step_prompts import lacking
from kvasir_runtime.core.steps_in_flight import StepsInFlight
from kvasir_runtime.core.throughput import DecayingMean

TRIAL: Final = 16
"""Measured steps of each number of sets, before it is compared."""
LEAST_WAIT: Final = 16 * TRIAL
MOST_WAIT: Final = LEAST_WAIT << 5
"""Steps until another number is tried again; twice as many when all others were slower."""
KEPT: Final = 1 - 1 / TRIAL
"""Of what was measured, at each step."""


def numbers_of_sets(stages: int, num_rows: int) -> tuple[int, ...]:
    """Which are tried for up to so many rows: as many sets as there are stages, half as many, and so on to one."""
    found = [max(1, min(stages, num_rows))]
    while found[-1] > 1:
        found.append(-(-found[-1] // 2) if found[-1] > 2 else 1)
    return tuple(found)


@dataclass(slots=True)
class SetChoice:
    """Into how many sets about so many requests are divided. numbers: those that are tried, the most first.

    sets: now. best: what was fastest; another one is tried meanwhile. left: measured steps until this changes or is
    compared. slower: others in a row that were.
    """

    numbers: tuple[int, ...]
    sets: int = field(init=False)
    best: int = field(init=False)
    left: int = TRIAL
    wait: int = LEAST_WAIT
    slower: int = 0
    rates: dict[int, DecayingMean] = field(default_factory=lambda: defaultdict(DecayingMean))
    _others: deque[int] = field(init=False)
    """Those beside the best, in the order in which they are tried."""

    def __post_init__(self) -> None:
        self.sets = self.best = self.numbers[0]
        self._others = deque(self.numbers[1:])

    def observe(self, sets: int, num_tokens: int, elapsed_s: float) -> None:
        """A step of decoding alone ended so many seconds after the one before, and gave so many tokens."""
        self.rates[sets].add(num_tokens, elapsed_s, KEPT)
        if sets != self.sets or not self._others:
            return
        self.left -= 1
        if self.left:
            return
        self.left = TRIAL
        if self.sets != self.best:
            self._compare()
            if all(number in self.rates for number in self.numbers):
                self.sets, self.left = self.best, self.wait
                return
        self.sets = self._others[0]

    def _compare(self) -> None:
        """What was tried with the best."""
        tried, best = self._others.popleft(), self.best
        if self.rates[tried].value > self.rates[best].value:
            self.best, tried = tried, best
            self.slower, self.wait = 0, LEAST_WAIT
        else:
            self.slower += 1
        self._others.append(tried)
        if self.slower >= len(self._others):
            self.slower, self.wait = 0, min(MOST_WAIT, 2 * self.wait)


class _Way(NamedTuple):
    """How a step was planned. size: number of bits of the number of requests that decoded."""

    step: int
    size: int
    sets: int


class StageSets:
    """stages: of the runner; with one every step may compute all that runs."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._choices: dict[int, SetChoice] = {}
        self._ways: deque[_Way] = deque()
        self._before: tuple[int, int] | None = None
        """Size and sets of the step that was collected last, None where it did not only decode."""
        self._ended = 0.0
        self._steps: dict[int, int] = {}
        """The last of each request, by its id: those that wait longest come first, else one of many rows had none."""

    def due(self, builder: PlanBuilder, running: Collection[RequestKind], launched: StepsInFlight) -> list[RequestKind]:
        """The requests that a step goes on with, in their order.

        Behind a step that computes prompts it takes none: what streams, in other sets too, would wait for both, and
        parts of a prompt's chunk are in all stages at once anyway.
        """
        if self._stages == 1:
            return list(running)
        num_rows = sum([kind.num_rows for kind in running if lacking(kind) <= 1])
        size = num_rows.bit_length()
        sets = self._sets_of(size) if num_rows > 1 else 1
        if self._ways and self._ways[-1].step == builder.step:  # of a plan that had nothing to do
            self._ways.pop()
        self._ways.append(_Way(builder.step, size, sets))
        if len(launched) >= sets:
            builder.takes_prompts = False
            return []
        builder.takes_prompts = not launched.has_prompts
        room, taken = -(-num_rows // sets), 0
        found: list[RequestKind] = []
        for kind in sorted(running, key=lambda kind: self._steps.get(id(kind), 0)):
            if lacking(kind) > 1:
                if builder.takes_prompts:
                    found.append(kind)
            elif kind.need(1) is not None and (not taken or taken + kind.num_rows <= room):
                taken += kind.num_rows
                found.append(kind)
        chosen = {id(kind): builder.step for kind in found}
        self._steps = {id(kind): self._steps.get(id(kind), 0) for kind in running} | chosen
        return [kind for kind in running if id(kind) in chosen]

    def collected(self, step: int, chunks: Sequence[LaunchedChunk], num_tokens: int, now: float) -> None:
        """A step ended, which gave so many tokens, accepted drafts among them."""
        if self._stages == 1:
            return
        while (way := self._ways.popleft()).step != step:  # given up after a failure
            pass
        decodes = bool(chunks) and all(chunk.end - chunk.start == 1 for chunk in chunks)
        before, self._before = self._before, (way.size, way.sets) if decodes else None
        elapsed_s, self._ended = now - self._ended, now
        # A single request is divided in no way.
        if self._before is not None and self._before == before and way.size > 1 and elapsed_s > 0:
            self._choices[way.size].observe(way.sets, num_tokens, elapsed_s)

    def _sets_of(self, size: int) -> int:
        """For a number of rows with so many bits."""
        if size not in self._choices:
            self._choices[size] = SetChoice(numbers_of_sets(self._stages, (1 << size) - 1))
        return self._choices[size].sets
