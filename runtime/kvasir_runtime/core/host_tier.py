"""The second tier of the KV cache on the host: which blocks are copied there, and when a copy comes back.

The scheduler is the only caller. Every block is copied once, soon after it was published, so that it is on the host
when it leaves the device, whether by eviction, by preemption or with the process. A copy that comes back is published
like a computed block; the request that waits for it then finds it as a prefix hit. Copies are entries of plans. What
they touch stays pinned until the runner reports them done, and no step waits for them. What another replica holds comes
to the host in the same way (`peer_fetches`). Knows nothing of files.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kvasir_api.hashes import owner_of_block
from kvasir_api.state import KvHostState
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.peer_fetches import MOST_BLOCKS, PeerFetches, prefetch_output
from kvasir_runtime.core.plan import BlockLoad, BlockStore, HostChanges, PeerBlock, TransferResults
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.throughput import DecayingMean
from kvasir_runtime.wire import EngineOutput, packed_ids

FIRST_BLOCKS: Final = 32
"""Of a load before any was measured: no request is admitted until it ends, and the host may be slow."""
PROBE_EVERY: Final = 16
"""Of the loads that were judged slower than computing, one in so many is made all the same, to measure again."""
MEMORY_S: Final = 2.0
"""Seconds of copying after which a measurement weighs 1/e."""
MOST_HELD: Final = 4
"""Blocks that wait to be copied may pin one in so many of the device's; those behind them may be lost."""
HELD_S: Final = 0.1
"""Seconds of copying to the host that may be under way: requests that need the blocks wait for no more."""
FIRST_HELD: Final = 32
"""The same in blocks, before any copy was measured."""


class _Transfer(NamedTuple):
    """What one plan copies. held: blocks that it pins, those first that a chain begins with. stored: their keys."""

    step: int
    held: tuple[int, ...]
    loads: tuple[BlockLoad, ...] = ()
    stored: tuple[bytes, ...] = ()


class HostTier:
    """Knows by hash what the host holds, as far as the runner has reported it; without a tier everything is a miss."""

    __slots__ = (
        "_block_bytes",
        "_block_size",
        "_capacity_blocks",
        "_declined",
        "_dropped",
        "_dropping",
        "_groups",
        "_in_flight",
        "_limits",
        "_load_cost",
        "_loaded_blocks",
        "_loading",
        "_missed_blocks",
        "_most_held",
        "_num_held",
        "_peers",
        "_pending",
        "_pool",
        "_resident",
        "_store_cost",
        "_stored_blocks",
        "num_for_peers",
    )

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self._pool, self._limits = pool, limits
        self._groups = range(len(limits.attentions))
        self._capacity_blocks = limits.host_blocks
        self._block_size, self._block_bytes = limits.block_size, limits.block_bytes
        self._most_held = max(1, limits.num_blocks // MOST_HELD)
        self._peers = PeerFetches(limits.block_size)
        self._resident: set[bytes] = set()
        self._pending: dict[bytes, None] = {}
        """Keys of blocks that the host should hold, oldest first."""
        self._dropped: dict[bytes, None] = {}
        """Keys of blocks that it must not hold, and that no plan has dropped yet."""
        self._dropping: dict[bytes, int] = {}
        """Those that a launched plan drops, with its step. Until then a copy under way may still bring them there."""
        self._in_flight: deque[_Transfer] = deque()
        self._loading: dict[bytes, int] = {}
        """Keys of blocks that come to the device, with the steps of their plans; not those that were forgotten."""
        self._num_held = self._declined = 0
        self._load_cost, self._store_cost = DecayingMean(), DecayingMean()
        self._stored_blocks = self._loaded_blocks = self._missed_blocks = 0
        self.num_for_peers = 0
        """Prompts that other replicas had this one compute."""

    @property
    def is_enabled(self) -> bool:
        """Whether there is a second tier."""
        return self._capacity_blocks > 0

    @property
    def is_copying(self) -> bool:
        """Whether a launched plan copies or fetches something that was not reported done."""
        return bool(self._in_flight) or self._peers.is_fetching

    @property
    def has_work(self) -> bool:
        """Whether plans are needed to begin copies, or to learn of their end."""
        return bool(self.is_copying or self._pending or self._dropped or self._peers.has_new)

    @property
    def state(self) -> KvHostState:
        """Its share of `/state`."""
        tokens_of = self._limits.tokens_of
        capacity, cached = (
            tokens_of(count) for count in (self._capacity_blocks, min(len(self._resident), self._capacity_blocks))
        )
        own = KvHostState(
            capacity_tokens=capacity,
            cached_tokens=cached,
            free_tokens=capacity - cached,
            stored_tokens=tokens_of(self._stored_blocks),
            loaded_tokens=tokens_of(self._loaded_blocks),
            missed_tokens=tokens_of(self._missed_blocks),
            load_bytes_per_s=self._bytes_per_s(self._load_cost.value),
            store_bytes_per_s=self._bytes_per_s(self._store_cost.value),
            peer_prompts=self.num_for_peers,
            fetch_bytes_per_s=self._bytes_per_s(self._peers.block_s),
        )
        return self._peers.filled(own, tokens_of)

    def holds_alone(self) -> bool:
        """Whether a block becomes available when a copy ends, because nothing else refers to it."""
        return any(self._pool.references(block) == 1 for transfer in self._in_flight for block in transfer.held)

    def add(self, hashes: Sequence[bytes]) -> None:
        """Blocks of a chain were published, or found by a request: the host should hold them, and keep them longer.

        The first of a chain is used by most requests, so it comes last and is evicted last.
        """
        if not self.is_enabled:
            return
        for key in [key_of(block_hash, group) for block_hash in reversed(hashes) for group in self._groups]:
            self._pending.pop(key, None)
            self._pending[key] = None
        while len(self._pending) > 2 * self._pool.num_blocks:
            del self._pending[next(iter(self._pending))]

    def retract(self, hashes: Iterable[bytes]) -> None:
        """Neither store nor load blocks whose content is of no use, and drop what the host holds of them."""
        if not self.is_enabled:
            return
        for key in [key_of(block_hash, group) for block_hash in hashes for group in self._groups]:
            self._pending.pop(key, None)
            self._resident.discard(key)
            self._dropped[key] = None

    def store(self, builder: PlanBuilder) -> None:
        """Add copies and fetches to a plan, before it takes any block: what is copied must not be evicted by it."""
        builder.cancels += self._peers.cancels()
        builder.fetches += self._peers.begin()
        builder.drops += self._dropped
        for key in self._dropped:
            self._dropping.pop(key, None)  # they are kept by step
            self._dropping[key] = builder.step
        self._dropped.clear()
        stores: list[BlockStore] = []
        most = self._most_stores
        while self._pending and len(stores) < most:
            key = next(iter(self._pending))
            del self._pending[key]
            block = self._pool.find(key[:-1], key[-1])
            if block is not None:
                stores.append(BlockStore(block, key))
                self._dropping.pop(key, None)
        if stores:
            builder.stores += stores
            held = tuple(store.block for store in reversed(stores))
            self._pool.share(held, hit=False)
            self._hold(_Transfer(builder.step, held, stored=tuple(store.key for store in stores)))

    def prefetch(self, sequence: SequenceState, token_s: float, now: float) -> EngineOutput | None:
        """A request that wants no more than `fetch`: its output where nothing comes, else it is one of `settle`."""
        if self.fetch(sequence, len(sequence.hashes), token_s, now):
            return None
        return prefetch_output(sequence.request.request.request_id, 0)

    def fetch(self, sequence: SequenceState, limit: int, token_s: float, now: float) -> bool:
        """A request arrived: have what its peer holds behind what is here come to the host, if that is quicker.

        limit: blocks that it may use. token_s: as of `worth_loading`. Whether something comes.
        """
        request, size = sequence.request.request, self._block_size
        self.num_for_peers += request.for_peer
        if not (self.is_enabled and self._limits.fetches_blocks) or self._limits.has_states:
            return False  # a state is there as of the ends of chunks alone, and where the peer has one is not known
        if not self._peers.may_ask(request.kv_peer, now):
            return False
        end = min(limit, len(sequence.hashes), MOST_BLOCKS // len(self._groups))
        if request.kv_peer_tokens and not request.kv_peer_computes:
            end = min(end, -(-request.kv_peer_tokens // size))
        start = self._reach(sequence.hashes, end)
        if end - start < self._limits.least_blocks or self.is_fetching(sequence.hashes[start:end]):
            return False
        # Where the peer's part ends is a guess, and a window needs blocks before any end: all groups need all columns.
        blocks = tuple(
            PeerBlock(column, key)
            for column, block_hash in enumerate(sequence.hashes[start:end], start)
            for group in self._groups
            if self._pool.find(block_hash, group) is None and (key := key_of(block_hash, group)) not in self._resident
        )
        if not blocks or self._peers.lacks(request.kv_peer, blocks[0].key):
            return False
        load_s, compute_s = self._load_cost.value, token_s * size * (end - start)
        if not self._peers.worth_fetching(len(blocks), end - start, token_s=token_s, load_s=load_s):
            return False
        self._peers.add(request, packed_ids(sequence.tokens[: end * size]), blocks, compute_s)
        return True

    def abandon(self, request_id: str, others: Iterable[Sequence[bytes]]) -> None:
        """A request has ended: a peer is to compute no more for it, unless a block is of use to another one. others:
        chains of those that there are."""
        keys = self._peers.computed_for(request_id)
        if keys and not any(
            key_of(one, group) in keys for hashes in others for one in hashes for group in self._groups
        ):
            self._peers.cancel(request_id)

    def is_fetching(self, hashes: Sequence[bytes]) -> bool:
        """Whether a block of a chain is on its way to the host."""
        return self._peers.is_coming(key_of(block_hash, group) for block_hash in hashes for group in self._groups)

    def is_loading(self, hashes: Sequence[bytes]) -> bool:
        """Whether a block of a chain is on its way from the host to the device."""
        loading = self._loading
        return bool(loading) and any(
            key_of(block_hash, group) in loading for block_hash in hashes for group in self._groups
        )

    def covers(self, block_hash: bytes, token_s: float) -> bool:
        """Whether no group has to compute the block of a hash: it is on the device, or on the host, and copying it is
        quicker. token_s: as of `worth_loading`.
        """
        if not self._resident or self._is_slower(len(self._groups), 1, token_s):
            return self._pool.is_resident(block_hash)
        return all(
            key_of(block_hash, group) in self._resident or self._pool.find(block_hash, group) is not None
            for group in self._groups
        )

    def reach(self, hashes: Sequence[bytes], limit: int, token_s: float) -> int:
        """Blocks of a chain, at most limit, that need not be computed, as `covers` has it."""
        if not self._resident or self._is_slower(len(self._groups), 1, token_s):
            return self._pool.reach(hashes, limit)
        return self._reach(hashes, limit)

    def worth_loading(self, hashes: Sequence[bytes], start: int, limit: int, token_s: float) -> int:
        """How far a chain of which start blocks are hits should be loaded and not computed, at most limit; 0 for not.

        token_s: measured seconds to compute a token, 0 if nothing was measured yet. Until both are known, copy.
        """
        if not self._resident:
            return 0
        least, end = self._limits.least_blocks, self._reach(hashes, limit)
        if not self._load_cost.value:
            first = self._reach(hashes, min(end, start + max(least, FIRST_BLOCKS // len(self._groups))))
            if first - start >= least:  # else a state or a window has no end so near
                end = first
        if end - start < least:
            return 0
        count = sum(block is None for _, _, block in self._pool.needed(hashes[:end]))
        if self._is_slower(count, end - start, token_s):
            self._declined += 1
            if self._declined % PROBE_EVERY:
                return 0
        return end

    def load(self, builder: PlanBuilder, hashes: Sequence[bytes], payer: str = "") -> bool:
        """Add to a plan the copies from the host that a hit on the whole chain lacks. False where blocks are short.

        payer: the tenant whose request waits for them.
        """
        needed = list(self._pool.needed(hashes))
        hits = [block for _, _, block in needed if block is not None]
        keys = [key_of(block_hash, group) for group, block_hash, block in needed if block is None]
        if not self._pool.can_take(len(keys), hits):
            return False
        self._pool.share(hits, hit=False, payer=payer)
        blocks = self._pool.take(len(keys), payer)
        loads = tuple(map(BlockLoad, keys, blocks))
        builder.loads += loads
        self._loading.update(dict.fromkeys(keys, builder.step))
        self._hold(_Transfer(builder.step, (*hits, *blocks), loads))
        return True

    def settle(self, done: TransferResults) -> list[EngineOutput]:
        """Copies ended: publish what was loaded, and give everything up. Returns the outputs of prefetches.

        A block that could not be loaded becomes free, and its request computes it and what follows.
        """
        outputs: list[EngineOutput] = []
        for fetched in done.fetched:
            settled = self._peers.settle(fetched)
            self._add_resident(settled.kept)
            self._dropped.update(dict.fromkeys(sorted(settled.unwanted)))
            outputs += settled.outputs
        loaded = set(done.loaded)
        self._stored_blocks += done.num_stored
        self._note(self._store_cost, done.store_s, done.num_stored)
        self._note(self._load_cost, done.load_s, len(loaded))
        while self._dropping and next(iter(self._dropping.values())) <= done.through:
            del self._dropping[next(iter(self._dropping))]
        while self._in_flight and self._in_flight[0].step <= done.through:
            transfer = self._in_flight.popleft()
            for load in transfer.loads:
                is_wanted = self._loading.get(load.key) == transfer.step
                if is_wanted:
                    del self._loading[load.key]
                if load.block not in loaded:
                    self._missed_blocks += 1
                    self._resident.discard(load.key)
                elif is_wanted:
                    self._loaded_blocks += 1
                    self._pool.publish(load.block, load.key[:-1], load.key[-1])
            self._num_held -= len(transfer.held)
            self._pool.release(transfer.held)
        return outputs

    def changed(self, changes: HostChanges) -> None:
        """The host holds other blocks than before, by copies of this process or of others that share it."""
        if changes.reset:
            self._resident.clear()
        self._resident.difference_update(changes.removed)
        self._add_resident(changes.added)

    def forget(self, owner: bytes = b"") -> None:
        """Nothing that was computed up to now may be found again, nor what is being copied.

        owner: only blocks with this mark, which the host drops by the next plans.
        """
        self._peers.forget(owner)
        if owner:
            stored = {key for transfer in self._in_flight for key in transfer.stored}
            for key in sorted(stored.union(self._pending, self._resident, self._loading)):
                if owner_of_block(key) == owner:
                    self._pending.pop(key, None)
                    self._loading.pop(key, None)
                    self._resident.discard(key)
                    self._dropped[key] = None
            return
        self._pending.clear()
        self._dropped.clear()
        self._dropping.clear()
        self._loading.clear()
        self._resident.clear()

    @property
    def _most_stores(self) -> int:
        """Copies to the host that may begin now."""
        cost = self._store_cost.value
        most = max(1, int(HELD_S / cost)) if cost else FIRST_HELD
        stored = sum(len(transfer.held) for transfer in self._in_flight if not transfer.loads)
        return min(self._most_held - self._num_held, most - stored)

    def _reach(self, hashes: Sequence[bytes], limit: int) -> int:
        """How much of a chain could be hits, by what is on the device and the host."""
        return self._pool.reach(hashes, limit, lambda group, block_hash: key_of(block_hash, group) in self._resident)

    def _is_slower(self, num_blocks: int, num_columns: int, token_s: float) -> bool:
        """Whether copying blocks was measured to be slower than computing so many columns of a table."""
        return token_s > 0 and self._load_cost.value * num_blocks > token_s * self._block_size * num_columns

    def _add_resident(self, keys: Iterable[bytes]) -> None:
        unwanted = self._peers.unwanted
        self._resident.update(
            key for key in keys if not (key in self._dropped or key in self._dropping or key in unwanted)
        )

    def _hold(self, transfer: _Transfer) -> None:
        self._num_held += len(transfer.held)
        self._in_flight.append(transfer)

    def _bytes_per_s(self, block_s: float) -> float:
        return self._block_bytes / block_s if block_s else 0.0

    @staticmethod
    def _note(cost: DecayingMean, seconds: float, num_blocks: int) -> None:
        if seconds > 0 and num_blocks:
            cost.add(seconds, num_blocks, 1.0 / (1.0 + seconds / MEMORY_S))


def key_of(block_hash: bytes, group: int = 0) -> bytes:
    """The key of a block on the host: its hash, and behind it its cache group."""
    return block_hash + group.to_bytes()
