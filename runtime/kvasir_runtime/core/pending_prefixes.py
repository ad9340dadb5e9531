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

    def __init__(self, least: int) -> None:
        self._least = least
        self._publishers: dict[bytes, SequenceState] = {}

    def __len__(self) -> int:
        return len(self._publishers)

    def add(self, sequence: SequenceState) -> None:
        """A sequence got a row: it will publish the full blocks of its tokens that it did not find."""
        for block_hash in sequence.hashes[sequence.published :]:
            self._publishers.setdefault(block_hash, sequence)

    def published(self, hashes: Sequence[bytes]) -> None:
        """These blocks are published, by whichever sequence."""
        for block_hash in hashes:
            self._publishers.pop(block_hash, None)

    def remove(self, sequence: SequenceState) -> None:
        """A sequence gives up its row."""
        for block_hash in sequence.hashes[sequence.published :]:
            if self._publishers.get(block_hash) is sequence:
                del self._publishers[block_hash]

    def is_due(self, block_hash: bytes) -> bool:
        """Whether a sequence will publish a block."""
        return block_hash in self._publishers

    def worth_waiting(self, sequence: SequenceState, num_hits: int, limit: int, data_rank: int) -> bool:
        """Whether enough of the blocks that it must compute are about to be published at a data-parallel rank.

        limit: blocks it may use.
        """
        end, publishers = num_hits + self._least, self._publishers
        if end > min(limit, len(sequence.hashes)):
            return False
        found = [publishers.get(block_hash) for block_hash in sequence.hashes[num_hits:end]]
        return all(one is not None and one.request.data_rank == data_rank for one in found)
