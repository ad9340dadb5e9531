"""The blocks of several data-parallel ranks: a pool for each, in which all blocks of a sequence lie.

The scheduler has it in place of a `BlockPool`. Block numbers are those of all ranks, one rank's behind the other's, so
that a block says which rank has it. What is taken or looked up for a sequence is so by `of_rank`; all else is here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_runtime.core.blocks import BlockPool, BlockStates
from kvasir_runtime.core.limits import Limits


class DividedBlockPool(BlockPool):
    """Of so many ranks with equally many blocks each."""

    __slots__ = ("_pools", "num_ranks")

    def __init__(
        self, num_blocks: int, attentions: Sequence[LayerAttention] = (FULL,), block_size: int = 1, *, num_ranks: int
    ) -> None:
        """Raises ValueError where ranks do not divide the blocks."""
        each, rest = divmod(num_blocks, num_ranks)
        if rest:
            raise ValueError(f"num_blocks is {num_blocks}, expected a multiple of the {num_ranks} ranks")
        self.num_blocks, self.num_ranks = num_blocks, num_ranks
        states = BlockStates(num_blocks)
        self.lost, self.pinned_by = states.lost, states.pinned_by
        self._refs, self._key_of = states.refs, states.key_of
        self._pools = tuple(
            BlockPool(each, attentions, block_size, numbers=range(first, first + each), states=states)
            for first in range(0, num_blocks, each)
        )

    def of_rank(self, rank: int) -> BlockPool:
        """The blocks of one rank, by their numbers among those of all."""
        return self._pools[rank]

    @property
    def num_free(self) -> int:
        """Of all ranks, as are the next."""
        return sum([pool.num_free for pool in self._pools])

    @property
    def num_cached(self) -> int:
        """As of one pool."""
        return sum([pool.num_cached for pool in self._pools])

    @property
    def num_pinned(self) -> int:
        """As of one pool."""
        return sum([pool.num_pinned for pool in self._pools])

    @property
    def num_available(self) -> int:
        """As of one pool; a sequence gets those of one rank."""
        return sum([pool.num_available for pool in self._pools])

    @property
    def num_leaving(self) -> int:  # type: ignore[override]
        """As of one pool."""
        return sum([pool.num_leaving for pool in self._pools])

    @property
    def num_reused(self) -> int:  # type: ignore[override]
        """As of one pool."""
        return sum([pool.num_reused for pool in self._pools])

    def can_take(self, count: int, sharing: Iterable[int] = ()) -> bool:  # noqa: ARG002
        """Not of all ranks: see `of_rank`."""
        raise TypeError(f"{count} blocks are for a sequence, which has those of one rank")

    def take(self, count: int, payer: str = "") -> list[int]:  # noqa: ARG002
        """Not of all ranks: see `of_rank`."""
        raise TypeError(f"{count} blocks are for a sequence, which has those of one rank")

    def lookup(self, hashes: Sequence[bytes], limit: int) -> list[list[int]]:  # noqa: ARG002
        """Not of all ranks: see `of_rank`."""
        raise TypeError("a prefix is found among the blocks of one rank")

    def reach(self, hashes: Sequence[bytes], limit: int, elsewhere: Callable[[int, bytes], bool] | None = None) -> int:
        """Columns of the longest hit that some rank has."""
        return max([pool.reach(hashes, limit, elsewhere) for pool in self._pools])

    def branch(self, hashes: Sequence[bytes], limit: int) -> int:
        """Columns that sequences of some rank have in common."""
        return max([pool.branch(hashes, limit) for pool in self._pools])

    def needed(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, bytes, int | None]]:
        """As of the pool of the first rank: for a second tier, which several ranks have not."""
        return self._pools[0].needed(hashes)

    def find(self, block_hash: bytes, group: int = 0) -> int | None:
        """The block of the first rank that has one."""
        found = (pool.find(block_hash, group) for pool in self._pools)
        return next((block for block in found if block is not None), None)

    def is_resident(self, block_hash: bytes) -> bool:
        """Whether some rank has the block of this hash in every cache group."""
        return any(pool.is_resident(block_hash) for pool in self._pools)

    def share(self, blocks: Iterable[int], *, hit: bool = True, payer: str | None = None) -> int:
        """As of one pool; blocks: of one rank, as below."""
        held = list(blocks)
        return self._that_has(held).share(held, hit=hit, payer=payer)

    def publish(self, block: int, block_hash: bytes, group: int = 0) -> bool:
        """At the rank that has the block; others may have one of the same hash."""
        return self._that_has((block,)).publish(block, block_hash, group)

    def retract(self, blocks: Iterable[int]) -> None:
        """As of one pool."""
        held = list(blocks)
        self._that_has(held).retract(held)

    def release(self, blocks: Sequence[int], step: int | None = None) -> None:
        """As of one pool."""
        self._that_has(blocks).release(blocks, step)

    def settle(self, step: int) -> None:
        """At all ranks."""
        for pool in self._pools:
            pool.settle(step)

    def forget(self, owner: bytes = b"") -> None:
        """At all ranks."""
        for pool in self._pools:
            pool.forget(owner)

    def _that_has(self, blocks: Sequence[int]) -> BlockPool:
        """The pool of the first of them, which all are in; any where there are none."""
        return self._pools[blocks[0] // (self.num_blocks // self.num_ranks) if blocks else 0]


def new_pool(limits: Limits) -> BlockPool:
    """Of all blocks, or of each rank's."""
    of_groups = limits.num_blocks, limits.attentions, limits.block_size
    return (
        BlockPool(*of_groups) if limits.data_ranks == 1 else DividedBlockPool(*of_groups, num_ranks=limits.data_ranks)
    )


class RankRoom(NamedTuple):
    """What a rank has for a request that waits. claimed: blocks that would be taken for it, those of its prefix that
    are not in use among them, and available: that could be. found: blocks of its prefix. grows: whether all that run
    there have room for what they may grow by, beside it. hits: the blocks of its prefix, by cache group.
    """

    claimed: int
    available: int
    found: int
    grows: bool = True
    hits: Sequence[list[int]] = ()

    @property
    def fits(self) -> bool:
        """Whether it may come there."""
        return self.available >= self.claimed


CLOSED: Final = RankRoom(claimed=0, available=-(1 << 62), found=0, grows=False)
"""Of a rank at which another request waits for room."""


def chosen(rooms: Sequence[RankRoom], waits_at: int | None = None) -> int:
    """The rank that computes a request: of those with room for it and for what all may grow by, the one with most,
    blocks of its prefix counting twice as room, for what they save and for the time to compute them. So a prefix that
    all requests have in common draws them to its rank only until that has twice as many blocks less than another, which
    computes it then as well. waits_at: where it waits for room, and stays while no rank has it, lest two ranks in
    turn let others pass.
    """

    def preference(rank: int) -> tuple[bool, bool, bool, bool, int, int]:
        room = rooms[rank]
        return (
            room.fits,
            room.fits and room.grows,
            rank == waits_at,
            room.grows,
            room.available + 2 * room.found,
            room.found,
        )

    return max(range(len(rooms)), key=preference)
