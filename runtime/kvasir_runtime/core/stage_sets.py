"""Which running requests a step computes where as many steps as there are stages may be in flight, each in one of them.

Owned by the scheduler. A token is not known before its step has left the last stage, so steps in flight are of disjoint
requests. They go through the stages one behind the other and wait for the slowest of them, so the requests that decode
are divided into sets of as many rows, as they come and go.

A stage reads its weights for each set. Where that is most of a step, as with few requests or where stages share what
they read by, sets cost as much as they gain or more. So both are tried now and then, and what gave more tokens a second
is done. Knows no clock: seconds are given.
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
"""Measured steps of each way, before they are compared."""
LEAST_WAIT: Final = 16 * TRIAL
MOST_WAIT: Final = LEAST_WAIT << 5
"""Steps until the slower way is tried again; twice as many each time that it was slower still."""
KEPT: Final = 1 - 1 / TRIAL
"""Of what was measured, at each step."""


@dataclass(slots=True)
class SetChoice:
    """Whether about so many requests are divided. divides: now. best: what was faster; the other is tried meanwhile.

    left: measured steps until this changes or is compared.
    """

    divides: bool = True
    best: bool = True
    left: int = TRIAL
    wait: int = LEAST_WAIT
    rates: dict[bool, DecayingMean] = field(default_factory=lambda: {True: DecayingMean(), False: DecayingMean()})

    def observe(self, divided: bool, num_tokens: int, elapsed_s: float) -> None:
        """A step of decoding alone ended so many seconds after the one before."""
        self.rates[divided].add(num_tokens, elapsed_s, KEPT)
        if divided != self.divides:
            return
        self.left -= 1
        if self.left:
            return
        if self.divides == self.best:
            self.divides, self.left = not self.best, TRIAL
            return
        faster = self.rates[True].value >= self.rates[False].value
        self.wait = min(MOST_WAIT, 2 * self.wait) if faster == self.best else LEAST_WAIT
        self.divides = self.best = faster
        self.left = self.wait


class _Way(NamedTuple):
    """How a step was planned. size: number of bits of the number of requests that decoded."""

    step: int
    size: int
    divided: bool


class StageSets:
    """stages: of the runner; with one every step may compute all that runs."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._choices: dict[int, SetChoice] = defaultdict(SetChoice)
        self._ways: deque[_Way] = deque()
        self._before: tuple[int, bool] | None = None
        """Size and way of the step that was collected last, None where it did not only decode."""
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
        divided = num_rows > 1 and self._choices[size].divides
        if self._ways and self._ways[-1].step == builder.step:  # of a plan that had nothing to do
            self._ways.pop()
        self._ways.append(_Way(builder.step, size, divided))
        if launched and not divided:
            builder.takes_prompts = False
            return []
        builder.takes_prompts = not launched.has_prompts
        room, taken = -(-num_rows // self._stages) if divided else num_rows, 0
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

    def collected(self, step: int, chunks: Sequence[LaunchedChunk], now: float) -> None:
        """A step ended."""
        if self._stages == 1:
            return
        while (way := self._ways.popleft()).step != step:  # given up after a failure
            pass
        decodes = bool(chunks) and all(chunk.end - chunk.start == 1 for chunk in chunks)
        before, self._before = self._before, (way.size, way.divided) if decodes else None
        elapsed_s, self._ended = now - self._ended, now
        # A single request is divided in no way.
        if self._before is not None and self._before == before and way.size > 1 and elapsed_s > 0:
            self._choices[way.size].observe(way.divided, len(chunks), elapsed_s)
