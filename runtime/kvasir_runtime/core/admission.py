"""Which waiting requests get rows in a step: in order, while budget, rows and blocks permit.

Owned by the scheduler, which joins what comes from here. A request that waits for its turn in the budget, or for a
prefix that is being computed or copied, is passed by those behind it that leave it room; one that lacks rows or blocks
is not, so that small requests do not keep a large one waiting. Of several data-parallel ranks that one is closed at
which it waits, until it comes there.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from kvasir_runtime.core.answer_lengths import AnswerLengths
from kvasir_runtime.core.block_tables import ABSENT, BlockTables
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.divided_blocks import CLOSED, RankRoom, chosen
from kvasir_runtime.core.fair_shares import FairShares
from kvasir_runtime.core.host_tier import HostTier
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.kv_peak import KvPeak
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.pending_prefixes import PendingPrefixes
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.core.prefill_shares import PromptPart, gets_share
from kvasir_runtime.core.running_requests import RunningRequests
from kvasir_runtime.core.step_prompts import PromptInStep
from kvasir_runtime.core.waiting_queue import WaitingQueue

LOOKAHEAD: Final = 16
"""Waiting requests that may be passed in a step, so that a long queue does not make planning long."""
MOST_AWAITING: Final = 256
"""Of waiting requests whose blocks come from another replica; they do not count as passed, since a fetch may take
seconds, and no more than LOOKAHEAD of them would stop all others."""
FORECAST: Final = 32
"""Running requests whose end is forecast per step: once the peak was too high it is computed again so many steps later
as there are this many of them, so that planning costs the same however many run."""


class Admission:
    """waiting: the queue. pending: blocks that running requests will publish. lengths: of answers that ended."""

    __slots__ = (
        "_host", "_limits", "_pending", "_pool", "_refused", "_running", "_shares", "_stuck", "_waiting", "lengths",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        pool: BlockPool,
        waiting: WaitingQueue,
        shares: FairShares,
        host: HostTier,
        pending: PendingPrefixes,
        running: RunningRequests,
    ) -> None:
        self._limits, self._pool, self._waiting, self._shares = limits, pool, waiting, shares
        self._host, self._pending, self._running = host, pending, running
        self.lengths = AnswerLengths()
        self._refused: dict[int, tuple[str, int]] = {}
        """Of a rank: the request with which its peak was too high, and the step before which it is not tried again."""
        self._stuck = ("", 0)
        """The first request that lacked room, and the rank at which it waits for it."""

    def due(
        self,
        builder: PlanBuilder,
        prompts: Sequence[PromptInStep],
        rows: Sequence[int],
        *,
        now: float,
        collected: int,
        token_s: float,
    ) -> Iterator[tuple[RequestKind, BlockTables]]:
        """Requests to be given rows now, each with the tables of its prefix hit; the caller does so before the next.

        prompts, rows: those that share the budget by seniority, and free ones, as the caller changes them.
        collected: the last step whose results are known. token_s: measured seconds of a computed token, or 0.
        """
        head: RequestKind | None = None
        num_passed = num_awaiting = 0
        closed, is_first = builder.closed, True
        peaks = [
            KvPeak(self._limits, self._pool.of_rank(rank), self.lengths, self._running, rank)
            for rank in range(self._pool.num_ranks)
        ]
        for kind in self._waiting.in_order(self._shares, now):
            if not builder.budget or not rows or num_passed == LOOKAHEAD or num_awaiting == MOST_AWAITING:
                return
            # A preempted request comes back only when nothing of it is in flight any more.
            is_due = kind.sequence.last_step <= collected and self._gets_share(kind, prompts, builder.budget)
            room = self._place(kind, head, peaks, closed) if is_due else None
            if room is None:
                head = head or kind
                if self._awaits_peer(kind, kind.sequence.hashes):
                    num_awaiting += 1
                else:
                    num_passed += 1
                continue
            if len(rows) < kind.num_rows + (head.num_rows if head is not None else 0):
                return
            rank = kind.request.data_rank
            if not (room.fits and self._stays_in_cache(peaks[rank], kind, room, builder.step)):
                closed.add(rank)
                if len(closed) == self._pool.num_ranks:
                    return
                if is_first:
                    self._stuck, is_first = (kind.request.request_id, rank), False
                head, num_passed = head or kind, num_passed + 1
                continue
            if self._load(builder, kind, len(room.hits[0]), token_s):
                head, num_passed = head or kind, num_passed + 1
                continue
            self._waiting.remove(kind, admitted_at=now)
            yield kind, BlockTables(self._limits.attentions, self._limits.block_size, room.hits)

    def _gets_share(self, kind: RequestKind, prompts: Sequence[PromptInStep], budget: int) -> bool:
        """Whether it would compute something now, by its last estimate, or all of it where that is one step's."""
        request = kind.request
        if self._limits.computes_whole:
            taken = sum([prompt.part.tokens for prompt in prompts])
            return not prompts or taken + len(kind.sequence.tokens) <= budget
        if not prompts or request.seniority < prompts[0].kind.request.seniority:
            return True
        part = PromptPart(max(1, request.uncached_estimate), request.request.priority)
        return gets_share(part, [prompt.part for prompt in prompts], budget)

    def _place(
        self, kind: RequestKind, head: RequestKind | None, peaks: Sequence[KvPeak], closed: Collection[int]
    ) -> RankRoom | None:
        """What a request has at the data-parallel rank that it comes to; None while more of its prefix is being
        computed or copied. head: the first that it passes. closed: ranks at which none is admitted.
        """
        needed, limit = kind.prepare(), kind.reusable // self._limits.block_size
        rooms = [
            CLOSED if rank in closed else self._room(rank, kind, needed, head, peak) for rank, peak in enumerate(peaks)
        ]
        stuck, waits_at = self._stuck
        rank = kind.request.data_rank = chosen(rooms, waits_at if kind.request.request_id == stuck else None)
        room = rooms[rank]
        if room is CLOSED:
            return room
        num_hits = len(room.hits[0])
        if self._pending.worth_waiting(kind.sequence, num_hits, limit, rank):
            return None
        missing = kind.sequence.hashes[num_hits:limit]
        return None if self._host.is_loading(missing) or self._awaits_peer(kind, missing) else room

    def _room(self, rank: int, kind: RequestKind, needed: int, head: RequestKind | None, peak: KvPeak) -> RankRoom:
        """What a rank has for a request that needs so many blocks, beside what must stay free there: a block in each
        group for each row, so that for block_size steps none is preempted, and all that the head of the queue needs.
        """
        pool, num_rows = self._pool.of_rank(rank), self._running.num_rows(rank)
        hits = pool.lookup(kind.sequence.hashes, kind.reusable // self._limits.block_size)
        held = [block for table in hits for block in table if block != ABSENT]
        spare = num_rows * len(self._limits.attentions)
        spare += head.prepare() if head is not None and head.request.data_rank == rank else 0
        claimed = needed - sum([pool.references(block) > 0 for block in held])
        grows = peak.is_far(kind, claimed, num_rows)
        return RankRoom(claimed, pool.num_available - spare, len(held), grows, hits)

    def _awaits_peer(self, kind: RequestKind, hashes: Sequence[bytes]) -> bool:
        """Whether a request waits for blocks of a chain from another replica. One that is computed for a replica never
        does: that one may be who is to compute them, for a request of this one's, and both would wait.
        """
        return not kind.request.request.for_peer and self._host.is_fetching(hashes)

    def _stays_in_cache(self, peak: KvPeak, kind: RequestKind, room: RankRoom, step: int) -> bool:
        """Whether all that run will probably fit to their ends beside a request, so that none is preempted."""
        if room.grows:
            return True
        rank = kind.request.data_rank
        request_id, until = self._refused.get(rank, ("", 0))
        if request_id == kind.request.request_id and step < until:
            return False
        if peak.fits(kind, room.claimed):
            return True
        self._refused[rank] = (kind.request.request_id, step + max(1, len(self._running) // FORECAST))
        return False

    def _load(self, builder: PlanBuilder, kind: RequestKind, num_hits: int, token_s: float) -> bool:
        """Begin to copy what the host holds behind the prefix hit of a request, if that is quicker than computing."""
        hashes, limit = kind.sequence.hashes, kind.reusable // self._limits.block_size
        end = self._host.worth_loading(hashes, num_hits, limit, token_s)
        return end > 0 and self._host.load(builder, hashes[:end], kind.request.request.tenant)
