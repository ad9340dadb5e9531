"""Which route hashes lead to a resident prefix: the digest that lets a gateway find the pod that holds a prompt.

The gateway has no tokenizer and the cache has no text, so each hash of a piece of text is mapped to the block in which,
by proportion, the piece ends. A piece off by one block costs a few recomputed tokens, never a wrong answer.
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvasir_runtime.core.blocks import BlockPool

DIGEST_ENTRIES = 256
"""Hashes published: 64 kB of distinct prompt text, 4 kB of digest in every reading."""
TRACKED_ENTRIES = 1024
"""Hashes remembered, so that entries whose blocks were evicted do not crowd out resident ones."""


class PrefixDigest:
    """Route hashes in order of use with the block hash each stands for."""

    __slots__ = ("_block_of", "_published", "_seen")

    def __init__(self) -> None:
        self._block_of: OrderedDict[bytes, bytes] = OrderedDict()
        self._published: tuple[str, ...] = ()
        self._seen = -1

    def note(self, route_hashes: Sequence[bytes], block_hashes: Sequence[bytes]) -> None:
        """A prompt with these route and block hashes was computed. The beginning counts as used last."""
        if not route_hashes or not block_hashes:
            return
        for position in range(min(len(route_hashes), TRACKED_ENTRIES) - 1, -1, -1):
            block = -(-(position + 1) * len(block_hashes) // len(route_hashes)) - 1
            self._block_of[route_hashes[position]] = block_hashes[block]
            self._block_of.move_to_end(route_hashes[position])
        while len(self._block_of) > TRACKED_ENTRIES:
            self._block_of.popitem(last=False)
        self._seen = -1

    def published(self, pool: BlockPool) -> tuple[str, ...]:
        """Hex route hashes of resident prefixes, most recently used first; recomputed only after a change."""
        if self._seen != pool.evictions:
            self._seen = pool.evictions
            resident = []
            for route_hash, block_hash in reversed(self._block_of.items()):
                if pool.is_resident(block_hash):
                    resident.append(route_hash.hex())
                    if len(resident) == DIGEST_ENTRIES:
                        break
            self._published = tuple(resident)
        return self._published
