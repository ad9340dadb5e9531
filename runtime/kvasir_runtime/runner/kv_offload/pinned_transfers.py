"""Copies blocks of a device's cache to and from memory of this process, on a stream of their own beside the steps.

Copies run in the order in which they were enqueued, so a slot may be loaded from, or given to another block, as soon as
its own copy is enqueued. No other process sees this memory, so nothing needs a lock or a checksum.
"""

import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from torch import Tensor

from kvasir_runtime.core.plan import BlockLoad, BlockStore, HostChanges, StepPlan, TransferResults
from kvasir_runtime.runner.kv_offload.slot_table import SlotTable
from kvasir_runtime.runner.state.device_stream import CopyMark, CopyStream

SALT_BYTES: Final = 32
POLL_S: Final = 0.0005


class _Batch(NamedTuple):
    """The copies of one plan between three marks: before all, between loads and stores, behind all."""

    step: int
    loaded: tuple[int, ...]
    num_stored: int
    marks: tuple[CopyMark, CopyMark, CopyMark]


class PinnedTransfers:
    """Implements `BlockTransfers`."""

    def __init__(self, blocks: Tensor, num_slots: int, stream: CopyStream) -> None:
        """blocks: (pieces, num_blocks, piece_bytes) uint8 on the device, the cache itself."""
        self._blocks, self._stream = blocks, stream
        pieces, _, piece_bytes = blocks.shape
        self._slots = stream.host_memory(num_slots, pieces * piece_bytes).view(num_slots, pieces, piece_bytes)
        self._table = SlotTable(num_slots)
        self._open: deque[_Batch] = deque()
        self._last_step = -1
        self.num_slots = num_slots
        self.hash_salt = secrets.token_bytes(SALT_BYTES)

    def submit(self, plan: StepPlan) -> None:
        """Enqueue the copies of a plan, loads first."""
        self._last_step = plan.step
        for key in plan.drops:
            slot = self._table.find(key)
            if slot is not None:
                self._table.drop(slot)
        if not (plan.loads or plan.stores):
            return
        before = self._stream.mark()
        loaded = self._load(plan.loads)
        between = self._stream.mark()
        num_stored = self._store(plan.stores)
        marks = (before, between, self._stream.mark())
        self._open.append(_Batch(plan.step, loaded, num_stored, marks))

    def completed(self, wait_s: float) -> TransferResults:
        """What ended since the last call."""
        deadline = time.monotonic() + wait_s
        while wait_s and self._open and not self._open[0].marks[2].has_passed() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        loaded: tuple[int, ...] = ()
        num_stored, load_s, store_s = 0, 0.0, 0.0
        while self._open and self._open[0].marks[2].has_passed():
            batch = self._open.popleft()
            before, between, behind = batch.marks
            loaded += batch.loaded
            num_stored += batch.num_stored
            load_s += between.seconds_since(before) if batch.loaded else 0.0
            store_s += behind.seconds_since(between) if batch.num_stored else 0.0
        through = self._open[0].step - 1 if self._open else self._last_step
        return TransferResults(through=through, loaded=loaded, num_stored=num_stored, load_s=load_s, store_s=store_s)

    def changes(self) -> HostChanges | None:
        """By the copies that were enqueued."""
        return self._table.changes()

    def forget(self) -> None:
        """Find nothing any more; the memory is this process's own, and is written over."""
        self._table.reset(self.num_slots)

    def _load(self, loads: Sequence[BlockLoad]) -> tuple[int, ...]:
        """Blocks whose copies were enqueued."""
        found = [(load.block, slot) for load in loads if (slot := self._table.find(load.key)) is not None]
        self._stream.copy(self._pieces(found))
        for _, slot in reversed(found):
            self._table.touch(slot)
        return tuple(block for block, _ in found)

    def _store(self, stores: Sequence[BlockStore]) -> int:
        """How many copies were enqueued; the others are there already."""
        fresh = []
        for store in stores:
            slot = self._table.find(store.key)
            if slot is not None:
                self._table.touch(slot)
                continue
            slot = self._table.reserve()
            assert slot is not None  # none stays reserved
            self._table.put(slot, store.key)
            fresh.append((store.block, slot))
        self._stream.copy((on_host, on_device) for on_device, on_host in self._pieces(fresh))
        return len(fresh)

    def _pieces(self, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Contiguous memory on the device and on the host. pairs: blocks and slots."""
        for block, slot in pairs:
            for piece in range(self._blocks.shape[0]):
                yield self._blocks[piece, block], self._slots[slot, piece]
