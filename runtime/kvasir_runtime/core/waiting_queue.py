"""The queue of requests without a row, in which order they come, and how much work waits in it.

Three rules, from the outside in:

1. Priority. A lower one comes first. Requests of one priority and tenant are a *flow*; for every AGEING_S seconds in
   which a flow is not served it counts as one priority more urgent, so that none waits forever: with F flows and
   priorities of p and at best q, the first of a flow is admitted at the latest F admissions after
   (p - q + 1) * AGEING_S seconds.
2. Fairness. Among flows of one priority, the tenant that was served least (`fair_shares`).
3. Deadline. Within a flow, and between flows that are equal so far, the earliest deadline for the first token. One
   without an objective has DEFAULT_TTFT_S, so it is not passed by what arrives much later.

A preempted request returns with the deadline that it had, and ages from its preemption on.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final

from kvasir_runtime.core.fair_shares import FairShares
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.request_state import AGEING_S

REFRESHED: Final = 4
"""Estimates brought up to date per snapshot: the queue may be long, a snapshot may not take long."""
WALKED_BLOCKS: Final = 64
"""Blocks by which one estimate may grow at a time."""
SHARED_EVERY: Final = 16
"""Blocks, at the ends of which the prefixes of those that wait are compared: a hash stands for all before it."""

_Entry = tuple[float, int, RequestKind]


@dataclass(slots=True, eq=False)
class _Flow:
    """Requests of one priority and tenant, by deadline and then arrival. served_at: when one was admitted last.

    uncached_tokens: of them together. shared_tokens: of these, what others were about to compute; too many where those
    have left.
    """

    priority: int
    tenant: str
    served_at: float = float("-inf")
    uncached_tokens: int = 0
    shared_tokens: int = 0
    entries: list[_Entry] = field(default_factory=list)

    def rank(self, place: int, shares: FairShares, now: float) -> tuple[int, float, float, int]:
        """Of one of its requests, the least comes first: its priority less what it has aged, the service of its
        tenant, its deadline, and its number, which no other has.
        """
        due_at, number, kind = self.entries[place]
        waited_s = max(0.0, now - max(kind.request.queued_at, self.served_at))
        return (self.priority - int(waited_s / AGEING_S), shares.counter(self.tenant), due_at, number)


class WaitingQueue:
    """Joining and leaving, from the middle included, cost the logarithm of the length. An order costs the number of
    flows once, and then the logarithm of it for each request.
    """

    __slots__ = ("_flows", "_length", "_prefixes", "_tenants", "uncached_tokens")

    def __init__(self) -> None:
        self._flows: dict[tuple[int, str], _Flow] = {}
        self._tenants: Counter[str] = Counter()
        """Flows of each."""
        self._prefixes: Counter[bytes] = Counter()
        """How many of those that wait begin with a block of such a hash."""
        self._length = 0
        self.uncached_tokens = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tenants(self) -> Collection[str]:
        """Those that wait."""
        return self._tenants.keys()

    def add(self, kind: RequestKind) -> None:
        """An arrival, or a preempted request."""
        request = kind.request
        key = (request.request.priority, request.request.tenant)
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = _Flow(*key)
            self._tenants[flow.tenant] += 1
        insort(flow.entries, _entry(kind))
        self._prefixes.update(_shareable(kind))
        self._length += 1
        flow.shared_tokens += request.shared_tokens
        self._count(flow, request.uncached_estimate)

    def remove(self, kind: RequestKind, *, admitted_at: float | None = None) -> None:
        """Take it out, wherever it is. admitted_at: when it was given a row; None where it left without."""
        key = (kind.request.request.priority, kind.request.request.tenant)
        flow = self._flows[key]
        del flow.entries[bisect_left(flow.entries, _entry(kind))]
        if admitted_at is not None:
            flow.served_at = admitted_at
        if not flow.entries:
            del self._flows[key]
            self._tenants[flow.tenant] -= 1
            if not self._tenants[flow.tenant]:
                del self._tenants[flow.tenant]
        for block_hash in _shareable(kind):
            if (left := self._prefixes[block_hash]) > 1:
                self._prefixes[block_hash] = left - 1
            else:
                self._prefixes.pop(block_hash, None)
        self._length -= 1
        flow.shared_tokens -= kind.request.shared_tokens
        self._count(flow, -kind.request.uncached_estimate)

    def shared(self, kind: RequestKind, hit: int, is_due: Callable[[bytes], bool], block_size: int) -> int:
        """Tokens of a newcomer behind `hit` blocks that another one which waits will compute, or that are due from one
        that runs.
        """
        found, most = hit, kind.reusable // block_size
        for place, block_hash in enumerate(_shareable(kind), 1):
            end = place * SHARED_EVERY
            if end <= hit:
                continue
            if end > most or not (block_hash in self._prefixes or is_due(block_hash)):
                break
            found = end
        return (found - hit) * block_size

    def shared_before(self, kind: RequestKind) -> int:
        """Tokens that those of a newcomer's flow which come before it need not compute themselves."""
        own = self._flows.get((kind.request.request.priority, kind.request.request.tenant))
        if own is None:
            return 0
        count = bisect_left(own.entries, _entry(kind))
        if count == len(own.entries):
            return own.shared_tokens
        return sum([before.request.shared_tokens for _, _, before in own.entries[:count]])

    def before(self, kind: RequestKind) -> tuple[int, int]:
        """Requests that come before one, waiting or about to, and their uncached tokens, estimated.

        More urgent ones come first, and of its own flow those with earlier deadlines. Of other tenants come as many
        tokens as of its own, by weights.
        """
        request = kind.request.request
        own = self._flows.get((request.priority, request.tenant))
        count = bisect_left(own.entries, _entry(kind)) if own else 0
        tokens = _tokens(own, count) if own else 0
        share = (tokens + kind.request.uncached_estimate) / request.weight
        for flow in self._flows.values():
            if flow is own or flow.priority > request.priority:
                continue
            part = 1.0
            if flow.priority == request.priority and flow.uncached_tokens:
                part = min(1.0, share * flow.entries[0][2].request.request.weight / flow.uncached_tokens)
            count += round(part * len(flow.entries))
            tokens += round(part * flow.uncached_tokens)
        return count, tokens

    def just_before(self, kind: RequestKind, most: int) -> list[int]:
        """Uncached tokens of the last of its own flow that come before one, so many at most."""
        own = self._flows.get((kind.request.request.priority, kind.request.request.tenant))
        if own is None:
            return []
        count = bisect_left(own.entries, _entry(kind))
        return [before.request.uncached_estimate for _, _, before in own.entries[max(0, count - most) : count]]

    def _count(self, flow: _Flow, tokens: int) -> None:
        flow.uncached_tokens += tokens
        self.uncached_tokens += tokens

    def in_order(self, shares: FairShares, now: float) -> Iterator[RequestKind]:
        """Requests as they should be admitted; the caller removes one before it takes the next, or leaves it."""
        ranked = [(flow.rank(0, shares, now), flow, 0) for flow in self._flows.values()]
        heapify(ranked)
        while ranked:
            rank, flow, place = heappop(ranked)
            # An admission moves its tenant's flows back, and no flow forward: a rank that still holds is the least.
            if (current := flow.rank(place, shares, now)) > rank:
                heappush(ranked, (current, flow, place))
                continue
            entry = flow.entries[place]
            yield entry[2]
            place += place < len(flow.entries) and flow.entries[place] is entry
            if place < len(flow.entries):
                heappush(ranked, (flow.rank(place, shares, now), flow, place))

    def refresh(self, is_cached: Callable[[bytes], bool], block_size: int) -> None:
        """Bring the estimates of the next requests up to date. is_cached: whether a block need not be computed now."""
        for flow, kind in islice(self._firsts(REFRESHED), REFRESHED):
            known = uncached_estimate(kind, is_cached, block_size)
            request = kind.request
            cached = min(request.shared_tokens, max(0, request.uncached_estimate - known))
            request.shared_tokens, flow.shared_tokens = request.shared_tokens - cached, flow.shared_tokens - cached
            self._count(flow, known - request.uncached_estimate)
            request.uncached_estimate = known

    def firsts(self, count: int) -> Iterator[RequestKind]:
        """So many that come soon."""
        return (kind for _, kind in islice(self._firsts(count), count))

    def tokens_by_weight(self) -> dict[str, float]:
        """Uncached tokens of each tenant, divided by its weight."""
        return self._by_weight(lambda flow: flow.uncached_tokens)

    def requests_by_weight(self) -> dict[str, float]:
        """Waiting requests of each tenant, divided by its weight."""
        return self._by_weight(lambda flow: len(flow.entries))

    def _by_weight(self, size: Callable[[_Flow], int]) -> dict[str, float]:
        held = dict.fromkeys(self._tenants, 0.0)
        for flow in self._flows.values():
            held[flow.tenant] += size(flow) / flow.entries[0][2].request.request.weight
        return held

    def last_first(self, tenant: str) -> Iterator[RequestKind]:
        """Requests of a tenant, the least urgent first, and of these those with the latest deadlines."""
        flows = [flow for flow in self._flows.values() if flow.tenant == tenant]
        for flow in sorted(flows, key=lambda flow: -flow.priority):
            yield from (kind for _, _, kind in reversed(flow.entries))

    def of_others(self, tenant: str) -> Iterator[RequestKind]:
        """Requests of all tenants but one, in no order."""
        flows = [flow for flow in self._flows.values() if flow.tenant != tenant]
        return (kind for flow in flows for _, _, kind in flow.entries)

    def _firsts(self, most: int) -> Iterable[tuple[_Flow, RequestKind]]:
        """The first of each flow, then the second of each, up to so many of each."""
        for place in range(most):
            for flow in self._flows.values():
                if place < len(flow.entries):
                    yield flow, flow.entries[place][2]


def _tokens(flow: _Flow, count: int) -> int:
    """Uncached tokens of the first requests of a flow. A newcomer is mostly behind all of them."""
    if count == len(flow.entries):
        return flow.uncached_tokens
    return sum([kind.request.uncached_estimate for _, _, kind in flow.entries[:count]])


def _shareable(kind: RequestKind) -> Sequence[bytes]:
    """Hashes of the blocks at whose ends prefixes are compared."""
    return kind.sequence.hashes[SHARED_EVERY - 1 :: SHARED_EVERY]


def _entry(kind: RequestKind) -> _Entry:
    return (kind.request.due_at, kind.request.number, kind)


def uncached_estimate(kind: RequestKind, is_cached: Callable[[bytes], bool], block_size: int) -> int:
    """Tokens of a waiting request that must be computed, from its last estimate and a bounded walk over its hashes."""
    hashes, num_tokens = kind.sequence.hashes, len(kind.sequence.tokens)
    limit = min(len(hashes), kind.reusable // block_size)
    hit = min(limit, (num_tokens - kind.request.uncached_estimate) // block_size)
    while hit and not is_cached(hashes[hit - 1]):
        hit //= 2
    stop = min(limit, hit + WALKED_BLOCKS)
    while hit < stop and is_cached(hashes[hit]):
        hit += 1
    return num_tokens - hit * block_size
