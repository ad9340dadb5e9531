"""The queue of sequences without a row, in order of arrival, and how much work waits in it.

Preempted sequences return to the front. They arrived before everybody who waits and after everybody who still runs,
because the latest arrival is preempted first, so running followed by waiting is always in order of arrival.
"""

from collections import OrderedDict
from collections.abc import Iterator

from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.sequence import SequenceState

REFRESHED = 4
"""Estimates brought up to date per snapshot: the queue may be long, a snapshot may not take long."""
WALKED_BLOCKS = 64
"""Blocks by which one estimate may grow at a time."""


class WaitingQueue:
    """First come, first served. Every operation is O(1), leaving from the middle included."""

    __slots__ = ("_order", "uncached_tokens")

    def __init__(self) -> None:
        self._order: OrderedDict[str, SequenceState] = OrderedDict()
        self.uncached_tokens = 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._order.values())

    @property
    def head(self) -> SequenceState:
        """Who is next; the queue must not be empty."""
        return next(iter(self._order.values()))

    def append(self, sequence: SequenceState) -> None:
        """An arrival."""
        self._order[sequence.request.request_id] = sequence
        self.uncached_tokens += sequence.uncached_estimate

    def put_back(self, sequence: SequenceState) -> None:
        """A preempted sequence, before all others."""
        self.append(sequence)
        self._order.move_to_end(sequence.request.request_id, last=False)

    def remove(self, sequence: SequenceState) -> None:
        """Take it out, wherever it is."""
        del self._order[sequence.request.request_id]
        self.uncached_tokens -= sequence.uncached_estimate

    def refresh(self, pool: BlockPool, block_size: int) -> None:
        """Bring the estimates of those who are next up to date with what the prefix cache holds now."""
        for _, sequence in zip(range(REFRESHED), self, strict=False):
            self.uncached_tokens -= sequence.uncached_estimate
            sequence.uncached_estimate = uncached_estimate(sequence, pool, block_size)
            self.uncached_tokens += sequence.uncached_estimate


def uncached_estimate(sequence: SequenceState, pool: BlockPool, block_size: int) -> int:
    """Tokens of a waiting sequence that must be computed, from its last estimate and a bounded walk over its hashes."""
    limit = min(len(sequence.hashes), sequence.reusable // block_size)
    hit = min(limit, (len(sequence.tokens) - sequence.uncached_estimate) // block_size)
    while hit and not pool.is_resident(sequence.hashes[hit - 1]):
        hit //= 2
    stop = min(limit, hit + WALKED_BLOCKS)
    while hit < stop and pool.is_resident(sequence.hashes[hit]):
        hit += 1
    return len(sequence.tokens) - hit * block_size
