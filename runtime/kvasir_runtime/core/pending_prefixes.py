"""Blocks of prompts that running requests are about to compute, so that others with the same prefix wait for them.

Used by the scheduler alone. Without it the choices of one request, or a burst behind one system prompt, would all be
admitted in one step and compute the same prompt side by side.
"""

from collections.abc import Sequence

from kvasir_runtime.core.sequence import SequenceState


class PendingPrefixes:
    """Hashes of blocks by the sequence that will publish them. Every entry ends: its block is published, or its
    sequence gives up its row. least: fewer blocks are computed again at once.
    """

    __slots__ = ("_least", "_publishers")

    def __init__(self, least: int, num_ranks: int = 1) -> None:
        """num_ranks: data-parallel ranks, each of which publishes for itself."""
        self._least = least
        self._publishers: tuple[dict[bytes, SequenceState], ...] = tuple({} for _ in range(num_ranks))

    def __len__(self) -> int:
        return sum(map(len, self._publishers))

    def add(self, sequence: SequenceState) -> None:
        """A sequence got a row: it will publish the full blocks of its tokens that it did not find."""
        publishers = self._publishers[sequence.request.data_rank]
        for block_hash in sequence.hashes[sequence.published :]:
            publishers.setdefault(block_hash, sequence)

    def published(self, hashes: Sequence[bytes], data_rank: int) -> None:
        """These blocks are published at a rank, by whichever sequence."""
        publishers = self._publishers[data_rank]
        for block_hash in hashes:
            publishers.pop(block_hash, None)

    def remove(self, sequence: SequenceState) -> None:
        """A sequence gives up its row."""
        publishers = self._publishers[sequence.request.data_rank]
        for block_hash in sequence.hashes[sequence.published :]:
            if publishers.get(block_hash) is sequence:
                del publishers[block_hash]

    def is_due(self, block_hash: bytes) -> bool:
        """Whether a sequence will publish a block."""
        return any(block_hash in publishers for publishers in self._publishers)

    def worth_waiting(self, sequence: SequenceState, num_hits: int, limit: int, data_rank: int) -> bool:
        """Whether enough of the blocks that it must compute are about to be published at a data-parallel rank.

        limit: blocks it may use.
        """
        end, publishers = num_hits + self._least, self._publishers[data_rank]
        return end <= min(limit, len(sequence.hashes)) and all(
            block_hash in publishers for block_hash in sequence.hashes[num_hits:end]
        )
