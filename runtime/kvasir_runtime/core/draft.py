"""A plan in the making, and what has to be remembered of it until its results are collected."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvasir_runtime.core.plan import Chunk, Copy, Fork, Grow, Insert, Join, Plan
from kvasir_runtime.core.sequence import Sequence


class Entry(NamedTuple):
    """One chunk of a launched plan: it computes positions start .. end of the sequence; samples: a token follows.

    scores: logprobs of the prompt follow. pools: the vector of its prompt follows.
    """

    sequence: Sequence
    start: int
    end: int
    samples: bool
    scores: bool
    pools: bool


@dataclass(slots=True)
class Draft:
    """budget: query tokens still to be given out. short: somebody waits for blocks, so nobody behind may take any."""

    step: int
    budget: int
    preempted: bool = False
    short: bool = False
    joins: list[Join] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    grows: list[Grow] = field(default_factory=list)
    inserts: list[Insert] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Compute the next num_tokens of a sequence; its projected lengths move at once."""
        if sequence.unsent:
            place = len(sequence.tokens) - len(sequence.unsent)
            self.inserts.append(Insert(sequence.row, place, sequence.unsent))
            sequence.unsent = ()
        start = sequence.computed
        end = start + num_tokens
        ends = end == sequence.known
        samples = ends and sequence.request.pooling is None
        scores = sequence.score(start, end)
        self.chunks.append(
            Chunk(
                row=sequence.row,
                start=start,
                num_tokens=num_tokens,
                samples=samples,
                min_tokens_left=max(0, sequence.request.sampling.min_tokens - sequence.generated) if samples else 0,
                scores=scores,
                pools=sequence.pool(start, end),
            )
        )
        self.entries.append(Entry(sequence, start, end, samples, scores[0] < scores[1], ends and not samples))
        self.budget -= num_tokens
        sequence.computed = end
        sequence.last_step = self.step
        if samples:
            sequence.in_flight += 1

    def plan(self, leaves: list[int]) -> Plan:
        """The finished plan."""
        return Plan(
            step=self.step,
            leaves=tuple(leaves),
            joins=tuple(self.joins),
            forks=tuple(self.forks),
            copies=tuple(self.copies),
            inserts=tuple(self.inserts),
            grows=tuple(self.grows),
            chunks=tuple(self.chunks),
        )
