"""Which route hashes lead to a resident prefix: the digest that lets a gateway find the pod that holds a prompt.

The gateway has no tokenizer and the cache has no text, so each hash of a piece of text is mapped to the block in which,
by proportion, the piece ends. A piece off by one block costs a few recomputed tokens, never a wrong answer. A hash is a
member while every cache group has that block on the device. Called by the scheduler, outside of its plans: those only
append to the list of hashes that the pool has lost.
"""

from collections import OrderedDict
from collections.abc import Sequence

from kvasir_api.prefix_digest import MOST_ENTRIES
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.engine_reports import PrefixChanges


class ResidentPrefixes:
    """Route hashes, those of the prompt that was computed last at the end, with the block that each stands for."""

    __slots__ = ("_block_of", "_changed", "_pool", "_routes_of", "_sequence")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._block_of: OrderedDict[bytes, bytes] = OrderedDict()
        self._routes_of: dict[bytes, list[bytes]] = {}
        self._changed: list[bytes] = []
        self._sequence = 0

    def note(self, route_hashes: Sequence[bytes], block_hashes: Sequence[bytes]) -> None:
        """A prompt with these route and block hashes was computed. The beginning counts as used last."""
        self._remove_lost()
        if not route_hashes or not block_hashes:
            return
        for position in range(min(len(route_hashes), MOST_ENTRIES) - 1, -1, -1):
            route_hash = route_hashes[position]
            if route_hash in self._block_of:
                self._block_of.move_to_end(route_hash)
                continue
            block_hash = block_hashes[-(-(position + 1) * len(block_hashes) // len(route_hashes)) - 1]
            if self._pool.is_resident(block_hash):
                self._block_of[route_hash] = block_hash
                self._routes_of.setdefault(block_hash, []).append(route_hash)
                self._changed.append(route_hash)
        while len(self._block_of) > MOST_ENTRIES:
            route_hash, block_hash = self._block_of.popitem(last=False)
            self._routes_of[block_hash].remove(route_hash)
            self._changed.append(route_hash)

    def changes(self) -> PrefixChanges | None:
        """What has changed since the last call; None where nothing has."""
        self._remove_lost()
        if not self._changed:
            return None
        self._sequence += len(self._changed)
        changed, self._changed = self._changed, []
        return PrefixChanges(sequence=self._sequence, hashes=b"".join(changed))

    def whole(self) -> PrefixChanges:
        """All members, as of the last call of `changes`, which has to come directly before."""
        return PrefixChanges(sequence=self._sequence, hashes=b"".join(self._block_of), whole=True)

    def _remove_lost(self) -> None:
        for block_hash in self._pool.lost:
            if block_hash in self._routes_of and not self._pool.is_resident(block_hash):
                for route_hash in self._routes_of.pop(block_hash):
                    del self._block_of[route_hash]
                    self._changed.append(route_hash)
        self._pool.lost.clear()
