"""Who holds which block of KV: pinned by live sequences, cached for prefix hits, or free. Knows nothing of tensors.

The scheduler is the only caller. A block is pinned while a sequence refers to it. Released, it becomes cached when it
was published (full, computed, known by its hash) and free otherwise; cached blocks are given away again, least
recently used first, when free ones run out. Every operation on a block is O(1). All cache groups draw on the same
blocks, which have the same bytes whatever they hold. Where each of several ranks has blocks of its own, there is a pool
for each of them (`divided_blocks`).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from kvasir_api.cache_groups import FULL, LayerAttention
from kvasir_api.hashes import owner_of_block
from kvasir_runtime.core.prefix_index import PrefixIndex


class BlockStates:
    """What is known of each of a number of blocks, whichever pool they are in, and what pools count together.

    lost: hashes under which a cache group of a pool has no block any more, for `ResidentPrefixes`, which empties it.
    pinned_by: how many blocks each tenant pins; of those that several refer to, the one that took or revived it.
    """

    __slots__ = ("key_of", "lost", "payers", "pinned_by", "refs", "reused")

    def __init__(self, num_blocks: int) -> None:
        self.refs = [0] * num_blocks
        self.payers = [""] * num_blocks
        self.reused = [False] * num_blocks
        self.key_of: list[tuple[int, bytes] | None] = [None] * num_blocks  # group and hash
        self.lost: list[bytes] = []
        self.pinned_by: dict[str, int] = {}


class BlockPool:
    """Blocks 0 .. num_blocks - 1, or of `numbers`, with reference counts, an index by hash and an order of eviction.

    Invariant: num_pinned + num_cached + num_free == num_blocks. Blocks released while a launched plan still names
    them stay pinned until that plan is collected (`release` with a step, then `settle`).
    """

    __slots__ = (
        "_cached",
        "_free",
        "_index",
        "_key_of",
        "_leaving",
        "_numbers",
        "_payers",
        "_refs",
        "_reused",
        "lost",
        "num_blocks",
        "num_leaving",
        "num_reused",
        "pinned_by",
    )

    num_ranks = 1
    """Data-parallel ranks, each of which has blocks of its own."""

    def __init__(
        self,
        num_blocks: int,
        attentions: Sequence[LayerAttention] = (FULL,),
        block_size: int = 1,
        *,
        numbers: range | None = None,
        states: BlockStates | None = None,
    ) -> None:
        """attentions: of the cache groups. numbers, states: of the pool of one rank of several: of num_blocks blocks,
        and of those of all ranks.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}, expected at least 1")
        states = states or BlockStates(num_blocks)
        self.num_blocks = num_blocks
        self.num_leaving = 0
        self.num_reused = 0
        """Blocks that prefix hits may find and that one has found already."""
        self.lost, self.pinned_by = states.lost, states.pinned_by
        self._refs, self._payers = states.refs, states.payers
        self._reused, self._key_of = states.reused, states.key_of
        self._numbers = range(num_blocks) if numbers is None else numbers
        # Taken from the end: the lowest first, and freed ones before any that was never written and has no memory yet.
        self._free = list(reversed(self._numbers))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._index = PrefixIndex(attentions, block_size)
        self._leaving: deque[tuple[int, Sequence[int]]] = deque()

    def of_rank(self, rank: int) -> "BlockPool":  # noqa: ARG002
        """The blocks of a data-parallel rank: all of them, where there are not several."""
        return self

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing of use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks without a reference that a prefix hit may still revive."""
        return len(self._cached)

    @property
    def num_pinned(self) -> int:
        """Blocks that a live sequence or a plan in flight refers to."""
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that take() could give now: free and cached."""
        return len(self._free) + len(self._cached)

    def can_take(self, count: int, sharing: Iterable[int] = ()) -> bool:
        """Whether take(count) succeeds after share(sharing)."""
        revived = sum(1 for block in sharing if not self._refs[block])
        return count <= self.num_available - revived

    def take(self, count: int, payer: str = "") -> list[int]:
        """Pin count blocks of undefined content: free ones first, then the least recently used cached ones.

        payer: the tenant that they count for while they are pinned.

        Raises ValueError when fewer are available: ask can_take() first.
        """
        if count > self.num_available:
            raise ValueError(f"{count} blocks wanted, {self.num_available} available")
        taken = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in taken:
            self._refs[block] = 1
            self._payers[block] = payer
        self._count(payer, count)
        return taken

    def lookup(self, hashes: Sequence[bytes], limit: int) -> list[list[int]]:
        """Block tables of the longest prefix hit, as `PrefixIndex.longest` gives them. Pins nothing."""
        return self._index.longest(hashes, limit)

    def reach(self, hashes: Sequence[bytes], limit: int, elsewhere: Callable[[int, bytes], bool] | None = None) -> int:
        """Columns of the longest hit, were those blocks here too that are elsewhere, by cache group and hash."""
        return self._index.reach(hashes, limit, elsewhere)

    def branch(self, hashes: Sequence[bytes], limit: int) -> int:
        """Columns that sequences have in common up to now, as `PrefixIndex.branch` has it."""
        return self._index.branch(hashes, limit)

    def needed(self, hashes: Sequence[bytes]) -> Iterator[tuple[int, bytes, int | None]]:
        """Group, hash and block, None where there is none, of everything that a hit on a whole chain needs."""
        return self._index.needed(hashes)

    def find(self, block_hash: bytes, group: int = 0) -> int | None:
        """The block that answers to a hash in a cache group."""
        return self._index.find(group, block_hash)

    def is_resident(self, block_hash: bytes) -> bool:
        """Whether every cache group has the block of this hash now."""
        return self._index.has(block_hash)

    def share(self, blocks: Iterable[int], *, hit: bool = True, payer: str | None = None) -> int:
        """Pin blocks that lookup() gave. Returns how many of them were not pinned before.

        hit: a prefix hit found them; False for parts of one request that share what it holds. payer: the tenant that
        those count for from now on that were not pinned; None for the one that they counted for last.
        """
        revived = 0
        for block in blocks:
            if not self._refs[block]:
                del self._cached[block]
                revived += 1
                if payer is not None:
                    self._payers[block] = payer
                self._count(self._payers[block], 1)
            self._refs[block] += 1
            if hit and not self._reused[block]:
                self._reused[block] = True
                self.num_reused += 1
        return revived

    def publish(self, block: int, block_hash: bytes, group: int = 0) -> bool:
        """Let others find a full, computed, pinned block of a cache group under its hash.

        False where another block already answers to that hash: tables are append-only, so equal blocks that were
        computed side by side are not merged; the second copy becomes free when it is released.
        """
        if not self._refs[block]:
            raise ValueError(f"block {block} is published but not held")
        if self._key_of[block] is not None or not self._index.add(group, block_hash, block):
            return False
        self._key_of[block] = (group, block_hash)
        return True

    def retract(self, blocks: Iterable[int]) -> None:
        """Let no later request find these pinned blocks; they become free when they are released."""
        for block in blocks:
            if (key := self._key_of[block]) is not None:
                self._unpublish(block, key)

    def release(self, blocks: Sequence[int], step: int | None = None) -> None:
        """Give up one reference to each block of a sequence, in the order of its table.

        step: the last launched plan that names them, if it was not collected yet; they stay pinned until settle(step).
        """
        if step is None:
            self._drop(blocks)
        elif blocks:
            self._leaving.append((step, blocks))
            self.num_leaving += len(blocks)

    def settle(self, step: int) -> None:
        """Every plan up to step was collected: what only they named is no longer pinned."""
        while self._leaving and self._leaving[0][0] <= step:
            _, blocks = self._leaving.popleft()
            self.num_leaving -= len(blocks)
            self._drop(blocks)

    def forget(self, owner: bytes = b"") -> None:
        """Let no prefix hit find what is published: cached blocks become free, pinned ones once they are given up.

        owner: only blocks with this mark.
        """
        if owner:
            self._forget_owner(owner)
            return
        for block in self._index.clear():
            key, self._key_of[block] = self._key_of[block], None
            if key is not None:
                self.lost.append(key[1])
            self._reused[block] = False
        self.num_reused = 0
        self._free += self._cached
        self._cached.clear()

    def _forget_owner(self, owner: bytes) -> None:
        for block in self._numbers:
            key = self._key_of[block]
            if key is None or owner_of_block(key[1]) != owner:
                continue
            self._unpublish(block, key)
            if not self._refs[block]:
                del self._cached[block]
                self._free.append(block)

    def references(self, block: int) -> int:
        """How many hold a block; 0 for cached and free ones."""
        return self._refs[block]

    def _drop(self, blocks: Sequence[int]) -> None:
        # Last block first: it is evicted first, so that a prefix outlives what follows it.
        for block in reversed(blocks):
            count = self._refs[block] - 1
            if count < 0:
                raise ValueError(f"block {block} is released but not held")
            self._refs[block] = count
            if count:
                continue
            self._count(self._payers[block], -1)
            if self._key_of[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def _count(self, payer: str, change: int) -> None:
        """Tenants that pin nothing have no entry."""
        count = self.pinned_by.get(payer, 0) + change
        if count:
            self.pinned_by[payer] = count
        else:
            self.pinned_by.pop(payer, None)

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        if (key := self._key_of[block]) is not None:
            self._unpublish(block, key)
        return block

    def _unpublish(self, block: int, key: tuple[int, bytes]) -> None:
        """Its group and hash lead to a block no longer."""
        self._index.remove(*key)
        self._key_of[block] = None
        self.num_reused -= self._reused[block]
        self._reused[block] = False
        self.lost.append(key[1])
