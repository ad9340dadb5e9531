"""The beams of one request as sequences: what they share, which rows and blocks they hold, when they step together.

Used by the scheduler, which sees one sequence, the head: it arrives, waits, is admitted, preempted and ended for all.
The head computes what all beams have in common: the prompt, and after a preemption what they begin with. Then each beam
is a sequence of its own with a row, and shares every full block with those that it has it in common with. A step is
taken when all of them are computed: every beam that goes on has its first continuation in its place, with its blocks;
each further one shares the full blocks, copies the last if that is only partly filled, and takes a row that came free.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvasir_runtime.core.beam_search import BeamSearch
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.outputs import event_of
from kvasir_runtime.core.plan import BlockCopy, Fork, Grow
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.wire import EngineOutput, Logprobs, SamplingConfig


class _Fork(NamedTuple):
    """A fork that no plan has said yet. copied: the partly filled block that the new row needs a copy of, or -1."""

    source: int
    position: int
    kept_blocks: int
    copied: int


@dataclass(slots=True, eq=False)
class BeamGroup:
    """rows: all that it holds, also those that nobody uses before the beams part. members: the beams, best first.

    forked: members hold rows and blocks; before, the head does. found: what came of members whose step is computed.
    """

    head: SequenceState
    search: BeamSearch
    rows: list[int] = field(default_factory=list)
    members: list[SequenceState] = field(default_factory=list)
    forked: bool = False
    _forks: list[_Fork] = field(default_factory=list)
    _found: dict[SequenceState, Logprobs] = field(default_factory=dict)

    @property
    def sampling(self) -> SamplingConfig:
        """What the runner is asked for: nothing is drawn that matters, the likeliest tokens are reported."""
        asked = self.head.request.sampling
        return SamplingConfig(
            temperature=0.0,
            max_tokens=asked.max_tokens,
            stop_token_ids=asked.stop_token_ids,
            logprobs=max(asked.logprobs, self.search.num_candidates),
            prompt_logprobs=asked.prompt_logprobs,
        )

    @property
    def width(self) -> int:
        """Rows that it needs."""
        return self.search.beam.width

    def demand(self, limits: Limits) -> int:
        """Blocks with which it can go on for at least one token of every beam."""
        common = len(self.head.tokens)
        longest = len(self.members[0].tokens) if self.members else common + 1
        if longest >= self.head.limit:  # it ends with what follows the head
            return limits.blocks_for(common)
        shared = common // limits.block_size
        return shared + self.width * (limits.blocks_for(longest) - shared)

    def take_in(self, sequence: SequenceState, said: Logprobs, pool: BlockPool, block_size: int, now: float) -> bool:
        """The head or a beam is computed, and these tokens may follow it. False when the search is over."""
        pinned = pool.num_pinned
        if sequence is self.head:
            goes_on = self._fork(said, pool, block_size)
        else:
            goes_on = self._step(sequence, said, pool, block_size)
        self.head.bill(self.head.billed_blocks + pool.num_pinned - pinned, now)
        return goes_on

    def _fork(self, said: Logprobs, pool: BlockPool, block_size: int) -> bool:
        """The beams begin, or go on after a preemption."""
        self.forked = True
        if self.members:
            common = len(self.head.tokens)
            tails = [member.tokens[common:] for member in self.members]
            self._expand([(self.head, tail) for tail in tails], [self.head], pool, block_size)
            return True
        return self._advance([self.head], [said], pool, block_size)

    def _step(self, member: SequenceState, said: Logprobs, pool: BlockPool, block_size: int) -> bool:
        """With the last member that is computed all step."""
        self._found[member] = said
        if len(self._found) < len(self.members):
            return True
        found, self._found = [self._found[one] for one in self.members], {}
        return self._advance(self.members, found, pool, block_size)

    def answers(self) -> list[EngineOutput]:
        """The last events, when the search is over: the best that it found. All of it is said at once."""
        return [
            event_of(
                self.head,
                request_id=request_id,
                token_ids=found.tokens,
                finish_reason=found.reason,
                stop_token_id=found.stop_token_id,
                logprobs=found.said,
                score=found.score,
            )
            for request_id, found in zip(self.search.beam.answers, self.search.finished, strict=False)
        ]

    def counts(self, budget: int) -> list[int]:
        """Tokens that each member computes now, within a budget; none while the head is on its own, or has no rows."""
        moves: list[int] = []
        if not self.forked or self.head.phase != "running":
            return moves
        for member in self.members:
            waits = member.in_flight or member in self._found
            moves.append(0 if waits else min(member.known - member.computed, budget))
            budget -= moves[-1]
        return moves

    def need(self, counts: Sequence[int], limits: Limits) -> int:
        """Blocks that must be taken for it, those for copies included: a row without its copy has one block less."""
        return sum(
            limits.blocks_for(member.computed + count) - len(member.blocks)
            for member, count in zip(self.members, counts, strict=True)
        )

    def move(self, draft: PlanBuilder, counts: Sequence[int], blocks: Iterable[int], limits: Limits) -> None:
        """Write its part of a plan. blocks: as many as were needed."""
        fresh = iter(blocks)
        forks: Sequence[_Fork | None] = self._forks or [None] * len(self.members)
        for member, count, fork in zip(self.members, counts, forks, strict=True):
            more = limits.blocks_for(member.computed + count) - len(member.blocks)
            new = [next(fresh) for _ in range(more)]
            member.blocks += new
            if fork is not None:
                self._say(draft, member, fork, new)
            elif new:
                draft.grows.append(Grow(member.row, tuple(new)))
            if count:
                draft.add(member, count)
        self._forks = []
        self.head.last_step = draft.step

    def reset(self) -> None:
        """Rows and blocks are gone: the head begins again with what all members have in common."""
        self.rows = []
        if not self.forked:
            return
        self.forked = False
        self._forks = []
        self._found = {}
        for member in self.members:
            member.phase = "ended"  # what is still computed for it is not taken in
        if self.members:
            tokens = [member.tokens for member in self.members]
            first, last = min(tokens), max(tokens)
            common = next((place for place, token in enumerate(first) if token != last[place]), len(first) - 1)
            self.head.tokens = first[:common]
        self.members = [self._member(member.tokens) for member in self.members]

    def _advance(self, parents: list[SequenceState], found: list[Logprobs], pool: BlockPool, block_size: int) -> bool:
        children = [(parents[child.parent], [child.node.token]) for child in self.search.advance(found)]
        self._expand(children, parents, pool, block_size)
        return bool(children)

    def _expand(
        self,
        children: list[tuple[SequenceState, list[int]]],
        parents: list[SequenceState],
        pool: BlockPool,
        block_size: int,
    ) -> None:
        """New members continue parents with tokens; parents that nobody continues give up what they hold."""
        fertile = {parent.row for parent, _ in children}
        spare = [row for row in self.rows if row not in fertile]
        members, forks = [], []
        for parent, tail in children:
            member = self._member([*parent.tokens, *tail])
            member.computed, member.published = parent.computed, parent.published
            member.hashes = list(parent.hashes)
            full = parent.computed // block_size
            if parent.row in fertile:
                fertile.remove(parent.row)
                member.row, member.blocks = parent.row, list(parent.blocks)
                copied = -1
            else:
                member.row, member.blocks = spare.pop(), parent.blocks[:full]
                pool.share(member.blocks, hit=False)
                copied = parent.blocks[full] if parent.computed % block_size else -1
            kept = len(member.blocks)
            forks.append(_Fork(parent.row, len(parent.tokens), kept, copied))
            members.append(member)
        continued = {parent for parent, _ in children}
        for parent in parents:
            if parent not in continued:
                pool.release(parent.blocks)
            parent.blocks = []
            if parent is not self.head:
                parent.phase = "ended"
        self.members, self._forks = members, forks

    def _member(self, tokens: list[int]) -> SequenceState:
        head = self.head
        return SequenceState(
            request=head.request,
            arrived=head.arrived,
            limit=head.limit,
            root=head.root,
            tokens=tokens,
            stops=head.stops,
            phase="running",
            scored=head.prompt_tokens,
            beams=self,
        )

    def _say(self, draft: PlanBuilder, member: SequenceState, fork: _Fork, new: list[int]) -> None:
        if fork.copied >= 0:
            draft.copies.append(BlockCopy(fork.copied, new[0]))
        draft.forks.append(
            Fork(
                row=member.row,
                source=fork.source,
                position=fork.position,
                tokens=tuple(member.tokens[fork.position :]),
                kept_blocks=fork.kept_blocks,
                blocks=tuple(new),
            )
        )
        member.last_step = draft.step


def new_beam_group(head: SequenceState) -> BeamGroup:
    """The beams of a sequence that just arrived, whose request asks for them."""
    request, sampling = head.request, head.request.sampling
    if request.beam is None:
        raise ValueError(f"request {request.request_id} does not ask for beams")
    search = BeamSearch(
        beam=request.beam,
        stops=head.stops,
        min_tokens=sampling.min_tokens,
        max_tokens=head.limit - head.prompt_tokens,
        num_told=sampling.logprobs,
    )
    return BeamGroup(head=head, search=search)
