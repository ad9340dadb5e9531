"""A plan in the making, and what has to be remembered of it until its results are collected."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from kvasir_runtime.core.plan import (
    BlockCopy,
    BlockFetch,
    BlockLoad,
    BlockStore,
    Chunk,
    Fork,
    Grow,
    Insert,
    Join,
    StepPlan,
    StepResults,
)
from kvasir_runtime.core.prefill_shares import UNLIMITED, LongPrompts
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.wire import SamplingConfig

NOTHING = (0, 0)
"""An empty range of positions."""


class LaunchedChunk(NamedTuple):
    """One chunk of a launched plan: it computes positions start .. end of the sequence.

    end: without drafts, which may be wrong. samples: a token follows. scores: logprobs of the prompt follow. pools: the
    vector of the prompt follows.
    """

    sequence: SequenceState
    start: int
    end: int
    samples: bool
    scores: bool
    pools: bool
    drafts: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Query tokens, drafts included."""
        return self.end - self.start + len(self.drafts)


@dataclass(slots=True)
class PlanBuilder:
    """budget: query tokens that no chunk has taken yet. long: what prompts that take many steps may take of it, and
    long_tokens: what they have taken. takes_prompts: it may compute prompts. out_of_blocks: the data-parallel ranks
    at which a request waits for blocks, so that none that arrived later may take any there. preempted: those at which
    one lost its row.
    """

    step: int
    budget: int
    long: LongPrompts = UNLIMITED
    long_tokens: int = 0
    takes_prompts: bool = True
    preempted: set[int] = field(default_factory=set)
    out_of_blocks: set[int] = field(default_factory=set)
    joins: list[Join] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    grows: list[Grow] = field(default_factory=list)
    inserts: list[Insert] = field(default_factory=list)
    stores: list[BlockStore] = field(default_factory=list)
    loads: list[BlockLoad] = field(default_factory=list)
    fetches: list[BlockFetch] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    drops: list[bytes] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    launched: list[LaunchedChunk] = field(default_factory=list)

    @property
    def closed(self) -> set[int]:
        """Data-parallel ranks at which none is admitted."""
        return self.preempted | self.out_of_blocks

    def join(self, sequence: SequenceState, sampling: SamplingConfig) -> None:
        """A request has its first row, tables and known tokens."""
        request = sequence.request
        self.joins.append(
            Join(
                row=sequence.row,
                request_id=request.request_id,
                tokens=tuple(sequence.tokens),
                prompt_tokens=request.prompt_tokens,
                computed_tokens=sequence.computed,
                tables=tuple([tuple(table) for table in sequence.blocks.by_group]),
                sampling=sampling,
                pooling=request.request.pooling,
                beams=request.request.beam is not None,
                root=sequence.root,
            )
        )

    def grow(self, sequence: SequenceState, end: int, blocks: Iterator[int]) -> None:
        """Append what the tables of a sequence lack to compute it up to end."""
        added = sequence.blocks.extend(end, blocks)
        self.grows += [Grow(sequence.row, fresh, group) for group, fresh in added]

    def compute(
        self,
        sequence: SequenceState,
        end: int,
        *,
        samples: bool,
        min_tokens_left: int = 0,
        drafts: tuple[int, ...] = (),
        pools: tuple[int, int] = NOTHING,
        completes_vector: bool = False,
    ) -> None:
        """Add the chunk that computes a sequence up to end; its projected lengths move at once. drafts: behind end."""
        start = sequence.computed
        chunk = Chunk(
            row=sequence.row,
            start=start,
            num_tokens=end - start + len(drafts),
            samples=samples,
            min_tokens_left=min_tokens_left,
            drafts=drafts,
            pools=pools,
        )
        self.chunks.append(chunk)
        self.launched.append(LaunchedChunk(sequence, start, end, samples, False, completes_vector, drafts))
        self.budget -= chunk.num_tokens
        sequence.computed = end
        sequence.unverified = len(drafts)
        sequence.last_step = self.step
        if samples:
            sequence.in_flight += 1

    def score(self, first: int, last: int) -> None:
        """The chunk that was added last also gives the logprobs of tokens first .. last of its prompt."""
        self.chunks[-1] = msgspec.structs.replace(self.chunks[-1], scores=(first, last))
        self.launched[-1] = self.launched[-1]._replace(scores=True)

    @property
    def is_empty(self) -> bool:
        """Whether it computes nothing and begins no copy."""
        return not (self.chunks or self.stores or self.loads or self.fetches or self.cancels or self.drops)

    def plan(self, leaves: tuple[int, ...], *, drafter_follows: bool) -> StepPlan:
        """The finished plan. drafter_follows: as in `StepPlan`."""
        return StepPlan(
            step=self.step,
            leaves=leaves,
            joins=tuple(self.joins),
            forks=tuple(self.forks),
            copies=tuple(self.copies),
            inserts=tuple(self.inserts),
            grows=tuple(self.grows),
            chunks=tuple(self.chunks),
            stores=tuple(self.stores),
            loads=tuple(self.loads),
            fetches=tuple(self.fetches),
            cancels=tuple(self.cancels),
            drops=tuple(self.drops),
            drafter_follows=drafter_follows,
        )


def check_results(plan: StepPlan, launched: list[LaunchedChunk], results: StepResults) -> None:
    """Raises ValueError where results do not hold one entry for each chunk that gives it."""
    rows = [chunk.row for chunk in plan.chunks if chunk.samples]
    if rows != [sampled.row for sampled in results.sampled]:
        raise ValueError(f"results of step {results.step} are not one for each chunk that samples")
    if sum([chunk.scores for chunk in launched]) != len(results.scored):
        raise ValueError(f"results of step {results.step} are not one for each chunk that scores")
    if sum([chunk.pools for chunk in launched]) != len(results.pooled):
        raise ValueError(f"results of step {results.step} are not one for each chunk that completes a vector")
