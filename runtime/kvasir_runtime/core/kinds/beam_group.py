"""The beams of one request as sequences: what they share, which rows and blocks they hold, when they step together.

The scheduler sees one sequence, the head: it arrives, waits, is admitted, preempted and ended for all beams. The head
computes what all beams have in common: the prompt, and after a preemption what they begin with. Then each beam is a
sequence of its own with a row, and shares every full block with those that it has it in common with. A step is taken
when all of them are computed: every beam that goes on has its first continuation in its place, with its blocks; each
further one shares the full blocks, copies the last if that is only partly filled, and takes a row that came free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from kvasir_runtime.core.block_tables import ABSENT, BlockTables
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds.beam_search import BeamSearch
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import BlockCopy, Fork, SampledTokens
from kvasir_runtime.core.plan_builder import LaunchedChunk, PlanBuilder
from kvasir_runtime.core.request_state import RequestState
from kvasir_runtime.core.sequence import SequenceState, Tokens
from kvasir_runtime.wire import BeamSearchConfig, EngineOutput, EngineRequest, Logprobs, SamplingConfig


class _Fork(NamedTuple):
    """A fork that is in no plan yet. copied: the partly filled blocks that the new row needs copies of, by group."""

    source: int
    position: int
    kept_blocks: int
    copied: Sequence[int] = ()


@dataclass(slots=True, eq=False)
class BeamGroup:
    """sequence: the head. limit: length of prompt and answer at which a beam ends. members: the beams, best first.

    forked: members hold rows and blocks; before, the head does. found: what may follow members that are computed.
    """

    request: RequestState
    sequence: SequenceState
    search: BeamSearch
    limits: Limits
    limit: int
    pool: BlockPool
    sampling: SamplingConfig = field(init=False)
    num_rows: int = field(init=False)
    members: list[SequenceState] = field(init=False, default_factory=list)
    forked: bool = field(init=False, default=False)
    _forks: list[_Fork] = field(init=False, default_factory=list)
    _found: dict[SequenceState, Logprobs] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.num_rows = self.search.beam.width
        sampling = self.request.request.sampling
        # What is drawn does not matter: the likeliest tokens are reported, and the search chooses among them.
        self.sampling = SamplingConfig(
            temperature=0.0,
            max_tokens=sampling.max_tokens,
            ignore_eos=sampling.ignore_eos,
            stop_token_ids=sampling.stop_token_ids,
            grammar=sampling.grammar,
            logprobs=max(sampling.logprobs, self.search.num_candidates),
            prompt_logprobs=sampling.prompt_logprobs,
        )

    @property
    def reusable(self) -> int:
        """All tokens of the head but one."""
        return len(self.sequence.tokens) - 1

    @property
    def remaining(self) -> int:
        """Of all beams."""
        return self.num_rows * max(0, self.limit - self.request.prompt_tokens - self.search.length)

    @property
    def is_ending(self) -> bool:
        """Whether the only token of each beam is in flight."""
        return self.sequence.known >= self.limit

    def prepare(self) -> int:
        """Blocks with which every beam can go on for at least one token."""
        common = len(self.sequence.tokens)
        longest = len(self.members[0].tokens) if self.members else common + 1
        if longest >= self.limit:  # it ends with what follows the head
            return self.limits.blocks_of_sequence(common)
        size, shared = self.limits.block_size, common // self.limits.block_size
        return (shared + self.num_rows * (-(-longest // size) - shared)) * len(self.limits.attentions)

    def need(self, budget: int) -> int | None:
        """The beams move together, or wait together."""
        if self.forked:
            counts = self._counts(budget)
            return sum(self._lacks(counts)) if any(counts) else None
        head = self.sequence
        count = min(len(head.tokens) - head.computed, budget)
        if head.in_flight or count < 1 or head.known >= self.limit:
            return None
        return head.blocks.lacks(head.computed + count)

    def advance(self, builder: PlanBuilder, blocks: list[int]) -> None:
        """The head alone, or all members; the blocks include those for copies."""
        if self.forked:
            self._advance_members(builder, blocks)
            return
        if blocks:
            end = min(len(self.sequence.tokens), self.sequence.computed + builder.budget)
            builder.grow(self.sequence, end, iter(blocks))
        self._compute(builder, self.sequence, builder.budget)

    def accept(
        self,
        chunk: LaunchedChunk,
        sampled: SampledTokens | None,
        scored: tuple[Logprobs, ...],  # noqa: ARG002 - PromptScoring reports them
        vector: bytes,  # noqa: ARG002
        now: float,
    ) -> Sequence[EngineOutput]:
        """Take in what may follow the head or a member. At the end of the search, the answers."""
        sequence = chunk.sequence
        if sampled is None:
            return ()
        sequence.in_flight -= 1
        if not sequence.active:  # its beam was dropped, or the head was preempted and computes it again
            return ()
        if sampled.invalid:
            return [self.request.invalid_output(answer_id) for answer_id in self.search.beam.answers]
        if sampled.error:
            return [self.request.failed_output(sampled.error, answer_id) for answer_id in self.search.beam.answers]
        if sampled.deferred:  # the last token is planned again, for a mask that was not ready
            sequence.computed = len(sequence.tokens) - 1
            return ()
        pinned = self.pool.num_pinned
        goes_on = self._fork(sampled.logprobs[0]) if sequence is self.sequence else self._step(sequence, sampled)
        self.request.bill(self.request.billed_blocks + self.pool.num_pinned - pinned, now)
        return () if goes_on else self._answers()

    def release(self) -> Sequence[SequenceState]:
        """The head begins again with what all members have in common."""
        held = [self.sequence, *self.members]
        if not self.forked:
            return held
        self.forked = False
        self._forks = []
        self._found = {}
        if self.members:
            tokens = [list(member.tokens) for member in self.members]
            first, last = min(tokens), max(tokens)
            common = next((place for place, token in enumerate(first) if token != last[place]), len(first) - 1)
            self.sequence.tokens = first[:common]
        self.members = [self._member(member.tokens) for member in self.members]
        return held

    def inject(self, token_ids: tuple[int, ...]) -> None:
        """Ignored: beams go on by themselves."""

    def drop_in_flight(self) -> None:
        """The head is computed again; members in flight end with the request."""
        self.sequence.in_flight = 0

    def _fork(self, found: Logprobs) -> bool:
        """The beams begin, or go on after a preemption. False when the search is over."""
        self.forked = True
        head = self.sequence
        if self.members:
            common = len(head.tokens)
            self._expand([(head, list(member.tokens[common:])) for member in self.members], [head])
            return True
        return self._search([head], [found])

    def _step(self, member: SequenceState, sampled: SampledTokens) -> bool:
        """With the last member that is computed all step. False when the search is over."""
        self._found[member] = sampled.logprobs[0]
        if len(self._found) < len(self.members):
            return True
        found, self._found = [self._found[one] for one in self.members], {}
        return self._search(self.members, found)

    def _search(self, parents: list[SequenceState], found: list[Logprobs]) -> bool:
        children = [(parents[child.parent], [child.node.token]) for child in self.search.advance(found)]
        self._expand(children, parents)
        return bool(children)

    def _expand(self, children: list[tuple[SequenceState, list[int]]], parents: list[SequenceState]) -> None:
        """New members continue parents with tokens; parents that none continues give up what they hold."""
        for parent in parents:  # no mask can be late for its last token any more
            self.pool.release(parent.blocks.drop_unseen(parent.computed))
        fertile = {parent.row for parent, _ in children}
        spare = [row for row in self.request.rows if row not in fertile]
        members, forks = [], []
        for parent, tail in children:
            member = self._member([*parent.tokens, *tail])
            member.active = True
            member.computed, member.published = parent.computed, parent.published
            member.hashes = list(parent.hashes)
            full = parent.computed // self.limits.block_size
            if parent.row in fertile:
                fertile.remove(parent.row)
                member.row, member.blocks = parent.row, parent.blocks.fork()
                forks.append(_Fork(parent.row, len(parent.tokens), len(parent.blocks.by_group[0])))
            else:
                member.row, member.blocks = spare.pop(), parent.blocks.fork(full)
                self.pool.share(member.blocks.held, hit=False)
                in_part = parent.computed % self.limits.block_size > 0
                copied = [table[full] for table in parent.blocks.by_group] if in_part else []
                forks.append(_Fork(parent.row, len(parent.tokens), full, copied))
            members.append(member)
        continued = {parent for parent, _ in children}
        for parent in parents:
            if parent not in continued:
                self.pool.release(parent.blocks.held)
            parent.blocks = BlockTables()
            parent.active = False
        self.members, self._forks = members, forks

    def _member(self, tokens: Tokens) -> SequenceState:
        return SequenceState(self.request, self.sequence.root, tokens)

    def _counts(self, budget: int) -> list[int]:
        """Tokens that each member computes now, within a budget.

        A state is read from the block that it is copied to, so the first ones behind a copy end with that block.
        """
        counts: list[int] = []
        forks: Sequence[_Fork | None] = self._forks or [None] * len(self.members)
        for member, fork in zip(self.members, forks, strict=True):
            waits, size = member.in_flight or member in self._found, self.limits.block_size
            most = size - member.computed % size if fork and fork.copied and self.limits.has_states else budget
            counts.append(0 if waits else min(member.known - member.computed, most, budget))
            budget -= counts[-1]
        return counts

    def _lacks(self, counts: list[int]) -> list[int]:
        """Blocks that each member lacks; a row without its copy has one block less."""
        return [
            member.blocks.lacks(member.computed + count) for member, count in zip(self.members, counts, strict=True)
        ]

    def _advance_members(self, builder: PlanBuilder, blocks: list[int]) -> None:
        counts = self._counts(builder.budget)
        fresh = iter(blocks)
        forks: Sequence[_Fork | None] = self._forks or [None] * len(self.members)
        self._forks = []
        for member, count, fork in zip(self.members, counts, forks, strict=True):
            if fork is not None:
                self._write_fork(builder, member, fork)
            first = len(builder.grows)
            builder.grow(member, member.computed + count, fresh)
            if fork is not None and fork.copied:
                self._write_copies(builder, fork.copied, first)
            if count:
                self._compute(builder, member, count)
        self.sequence.last_step = builder.step

    def _write_copies(self, builder: PlanBuilder, copied: Sequence[int], first: int) -> None:
        """Into the first block that each group grew by. first: among the grows of the plan."""
        for grow in builder.grows[first:]:
            target = next(block for block in grow.blocks if block != ABSENT)
            builder.copies.append(BlockCopy(copied[grow.group], target))

    def _write_fork(self, builder: PlanBuilder, member: SequenceState, fork: _Fork) -> None:
        builder.forks.append(
            Fork(
                row=member.row,
                source=fork.source,
                position=fork.position,
                tokens=tuple(member.tokens[fork.position :]),
                kept_blocks=fork.kept_blocks,
            )
        )
        member.last_step = builder.step

    def _compute(self, builder: PlanBuilder, sequence: SequenceState, count: int) -> None:
        """One chunk of at most count tokens; the last token of a sequence samples."""
        end = min(sequence.known, sequence.computed + count)
        samples = end == sequence.known
        early = self.request.request.sampling.min_tokens - (sequence.known - self.request.prompt_tokens)
        builder.compute(sequence, end, samples=samples, min_tokens_left=max(0, early) if samples else 0)

    def _answers(self) -> list[EngineOutput]:
        """The last outputs, when the search is over: the best that it found, and that there are no more of them."""
        cached, names = self.request.cached_tokens or 0, self.search.beam.answers
        found = [
            EngineOutput(
                request_id=request_id,
                token_ids=found.tokens,
                finish_reason=found.reason,
                stop_token_id=found.stop_token_id,
                cached_tokens=cached,
                logprobs=found.logprobs,
                score=found.score,
            )
            for request_id, found in zip(names, self.search.finished, strict=False)
        ]
        missing = names[len(found) :]
        return found + [EngineOutput(request_id=name, finish_reason="stop", score=-inf) for name in missing]


def longest(request: EngineRequest, beam: BeamSearchConfig, limits: Limits) -> int:
    """Longest prompt and answer: all beams must fit beside one another."""
    columns = limits.rank_blocks // len(limits.attentions)
    fits = beam.max_length(request.prompt_tokens, columns, limits.block_size)
    return min(limits.max_sequence_tokens, fits)


def refusal(beam: BeamSearchConfig, num_rows: int) -> str:
    """Why the beams can never run side by side; empty when they can. What holds for any answer holds for them too."""
    if 1 <= beam.width <= num_rows:
        return ""
    return f"{beam.width} beams are wanted, and {num_rows} sequences can run here at a time"
