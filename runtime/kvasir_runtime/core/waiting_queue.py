"""The queue of requests without a row, in order of arrival, and how much work waits in it.

Preempted requests return to the front. They arrived before all that wait and after all that still run, because the
latest arrival is preempted first, so running followed by waiting is always in order of arrival.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from kvasir_runtime.core.kinds.interface import RequestKind

REFRESHED = 4
"""Estimates brought up to date per snapshot: the queue may be long, a snapshot may not take long."""
WALKED_BLOCKS = 64
"""Blocks by which one estimate may grow at a time."""


class WaitingQueue:
    """First come, first served. Every operation is O(1), leaving from the middle included."""

    __slots__ = ("_order", "uncached_tokens")

    def __init__(self) -> None:
        self._order: OrderedDict[str, RequestKind] = OrderedDict()
        self.uncached_tokens = 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[RequestKind]:
        return iter(self._order.values())

    @property
    def head(self) -> RequestKind:
        """The next request; the queue must not be empty."""
        return next(iter(self._order.values()))

    def append(self, kind: RequestKind) -> None:
        """An arrival."""
        self._order[kind.request.request_id] = kind
        self.uncached_tokens += kind.request.uncached_estimate

    def put_back(self, kind: RequestKind) -> None:
        """A preempted request, before all others."""
        self.append(kind)
        self._order.move_to_end(kind.request.request_id, last=False)

    def remove(self, kind: RequestKind) -> None:
        """Take it out, wherever it is."""
        del self._order[kind.request.request_id]
        self.uncached_tokens -= kind.request.uncached_estimate

    def refresh(self, is_cached: Callable[[bytes], bool], block_size: int) -> None:
        """Bring the estimates of the next requests up to date. is_cached: whether a block need not be computed now."""
        for _, kind in zip(range(REFRESHED), self, strict=False):
            self.uncached_tokens -= kind.request.uncached_estimate
            kind.request.uncached_estimate = uncached_estimate(kind, is_cached, block_size)
            self.uncached_tokens += kind.request.uncached_estimate


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
