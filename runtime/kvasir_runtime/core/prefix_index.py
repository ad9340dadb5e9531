"""Which blocks hold the beginning of a sequence: by cache group, from the hash of a block to the block.

Owned by the pool. A group needs for a hit only what the tokens behind it see: one with a window the last blocks, one
that keeps everything all of them. A hit is the longest beginning of which every group has what it needs.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kvasir_api.cache_groups import LayerAttention
from kvasir_runtime.core.block_tables import ABSENT


class PrefixIndex:
    """attentions: of the cache groups."""

    __slots__ = ("_attentions", "_block_size", "_known")

    def __init__(self, attentions: Sequence[LayerAttention], block_size: int) -> None:
        self._attentions, self._block_size = tuple(attentions), block_size
        self._known: tuple[dict[bytes, int], ...] = tuple({} for _ in attentions)

    def add(self, group: int, block_hash: bytes, block: int) -> bool:
        """False, with nothing done, where another block of the group answers to the hash."""
        return self._known[group].setdefault(block_hash, block) == block

    def remove(self, group: int, block_hash: bytes) -> None:
        """Its block holds something else from now on."""
        del self._known[group][block_hash]

    def has(self, block_hash: bytes) -> bool:
        """Whether every group has this block."""
        return all(block_hash in known for known in self._known)

    def find(self, group: int, block_hash: bytes) -> int | None:
        """The block of a group that answers to a hash."""
        return self._known[group].get(block_hash)

    def clear(self) -> list[int]:
        """Forget all blocks. Returns them."""
        blocks = [block for known in self._known for block in known.values()]
        for known in self._known:
            known.clear()
        return blocks

    def needed(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, bytes, int | None]]:
        """Group, hash and block, None where there is none, of everything that a hit on a whole chain needs."""
        for group, (attention, known) in enumerate(zip(self._attentions, self._known, strict=True)):
            first = attention.first_seen(len(hashes) * self._block_size) // self._block_size
            for block_hash in hashes[first:]:
                yield group, block_hash, known.get(block_hash)

    def reach(self, hashes: Sequence[bytes], limit: int, elsewhere: Callable[[int, bytes], bool] | None = None) -> int:
        """Columns of the longest hit on a chain of hashes, at most limit. elsewhere: blocks that count as if here."""
        count = min(limit, len(hashes))
        has: list[Callable[[bytes], bool]] = [known.__contains__ for known in self._known]
        if elsewhere is not None:
            has = [partial(_either, known, elsewhere, group) for group, known in enumerate(self._known)]
        for attention, there in zip(self._attentions, has, strict=True):
            if attention.keeps_all:
                count = next((column for column in range(count) if not there(hashes[column])), count)
        fitting = -1
        while fitting != count:  # what shortens one group's hit moves what the others need
            fitting = count
            for attention, there in zip(self._attentions, has, strict=True):
                if not attention.keeps_all:
                    count = self._fitting(attention, there, hashes, count)
        return count

    def branch(self, hashes: Sequence[bytes], limit: int) -> int:
        """Columns, at most limit, that every group that keeps everything has: others computed them too, whatever is
        left of the other groups. 0 where no group keeps everything.
        """
        kept = [known for attention, known in zip(self._attentions, self._known, strict=True) if attention.keeps_all]
        count = min(limit, len(hashes)) if kept else 0
        for known in kept:
            count = next((column for column in range(count) if hashes[column] not in known), count)
        return count

    def longest(self, hashes: Sequence[bytes], limit: int) -> list[list[int]]:
        """The tables of the longest hit on a chain of hashes, of at most limit columns; ABSENT where none is needed."""
        count, tables = self.reach(hashes, limit), []
        for attention, known in zip(self._attentions, self._known, strict=True):
            first = attention.first_seen(count * self._block_size) // self._block_size
            tables.append([ABSENT] * first + [known[hashes[column]] for column in range(first, count)])
        return tables

    def _fitting(
        self, attention: LayerAttention, there: Callable[[bytes], bool], hashes: Sequence[bytes], count: int
    ) -> int:
        """The longest hit of at most count columns that one group allows."""
        column = count
        while column > attention.first_seen(count * self._block_size) // self._block_size:
            column -= 1
            if not there(hashes[column]):
                count = column
        return count


def _either(known: dict[bytes, int], elsewhere: Callable[[int, bytes], bool], group: int, block_hash: bytes) -> bool:
    return block_hash in known or elsewhere(group, block_hash)
