"""A plan in the making, and what has to be remembered of it until its results are collected."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kvasir_runtime.core.plan import BlockCopy, Chunk, Fork, Grow, Insert, Join, StepPlan, StepResults
from kvasir_runtime.core.sequence import SequenceState


class LaunchedChunk(NamedTuple):
    """One chunk of a launched plan: it computes positions start .. end of the sequence; samples: a token follows.

    scores: logprobs of the prompt follow. pools: the vector of its prompt follows.
    """

    sequence: SequenceState
    start: int
    end: int
    samples: bool
    scores: bool
    pools: bool


@dataclass(slots=True)
class PlanBuilder:
    """budget: query tokens still to be given out. short: somebody waits for blocks, so nobody behind may take any."""

    step: int
    budget: int
    preempted: bool = False
    short: bool = False
    joins: list[Join] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    grows: list[Grow] = field(default_factory=list)
    inserts: list[Insert] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    entries: list[LaunchedChunk] = field(default_factory=list)

    def add(self, sequence: SequenceState, num_tokens: int) -> None:
        """Compute the next num_tokens of a sequence; its projected lengths move at once."""
        if sequence.undelivered:
            place = len(sequence.tokens) - len(sequence.undelivered)
            self.inserts.append(Insert(sequence.row, place, sequence.undelivered))
            sequence.undelivered = ()
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
        self.entries.append(LaunchedChunk(sequence, start, end, samples, scores[0] < scores[1], ends and not samples))
        self.budget -= num_tokens
        sequence.computed = end
        sequence.last_step = self.step
        if samples:
            sequence.in_flight += 1

    def plan(self, leaves: list[int]) -> StepPlan:
        """The finished plan."""
        return StepPlan(
            step=self.step,
            leaves=tuple(leaves),
            joins=tuple(self.joins),
            forks=tuple(self.forks),
            copies=tuple(self.copies),
            inserts=tuple(self.inserts),
            grows=tuple(self.grows),
            chunks=tuple(self.chunks),
        )


def check_results(plan: StepPlan, chunks: list[LaunchedChunk], results: StepResults) -> None:
    """Raises ValueError where results do not hold one entry for each chunk that gives it."""
    rows = [chunk.row for chunk in plan.chunks if chunk.samples]
    if rows != [sampled.row for sampled in results.sampled]:
        raise ValueError(f"results of step {results.step} are not one for each chunk that samples")
    if sum(chunk.scores for chunk in chunks) != len(results.scored):
        raise ValueError(f"results of step {results.step} are not one for each chunk that scores")
    if sum(chunk.pools for chunk in chunks) != len(results.pooled):
        raise ValueError(f"results of step {results.step} are not one for each chunk that completes a vector")
