"""Copies blocks of a cache in host memory to and from a file, in a thread of its own beside the steps.

The copies release Python's lock, so the engine's thread goes on. Loads come first, since requests wait for them.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvasir_runtime.core.plan import BlockLoad, BlockStore, HostChanges, StepPlan, TransferResults
from kvasir_runtime.runner.kv_offload.file_store import FileStore

LOG = logging.getLogger(__name__)
RETRY_S: Final = 0.05
"""Until a file is erased again that could not be."""
BATCH_BLOCKS: Final = 32
"""Blocks of one call of the store: loads wait for no more, and the lock of the file is taken once for them."""


class TransferThread:
    """Implements `BlockTransfers`. The thread begins with the first copy and ends with the process."""

    def __init__(self, store: FileStore, blocks: NDArray[np.uint8], changed: threading.Condition | None = None) -> None:
        """blocks: (pieces, num_blocks, piece_bytes): the cache itself. A block is its pieces in a row.

        changed: to be notified when copies have ended.
        """
        self._store, self._blocks = store, blocks
        self._changed = threading.Condition() if changed is None else changed
        self._loads: deque[tuple[int, Sequence[BlockLoad]]] = deque()
        self._stores: deque[tuple[int, Sequence[BlockStore], Sequence[bytes]]] = deque()
        """Steps, blocks to keep, and keys of blocks to drop before."""
        self._open: dict[int, int] = {}
        """Batches that are left of each plan, by its step, in order."""
        self._last_step = -1
        self._loaded: list[tuple[int, int]] = []
        """Steps and blocks of loads that have ended well."""
        self._num_stored = 0
        self._load_s = self._store_s = 0.0
        self._erase = False
        self._thread: threading.Thread | None = None
        self._has_warned = False

    @property
    def hash_salt(self) -> bytes:
        """Of the file."""
        return self._store.salt

    @property
    def num_slots(self) -> int:
        """Of the file."""
        return self._store.num_slots

    def submit(self, plan: StepPlan) -> None:
        """Queue the copies of a plan. Without a thread they end at once: loads as misses, and nothing is stored."""
        with self._changed:
            self._last_step = plan.step
            loads = [plan.loads[at : at + BATCH_BLOCKS] for at in range(0, len(plan.loads), BATCH_BLOCKS)]
            stores = [plan.stores[at : at + BATCH_BLOCKS] for at in range(0, len(plan.stores), BATCH_BLOCKS)]
            if plan.drops:
                stores.insert(0, ())
            self._loads += ((plan.step, batch) for batch in loads)
            self._stores += ((plan.step, batch, () if batch else plan.drops) for batch in stores)
            if loads or stores:
                self._open[plan.step] = len(loads) + len(stores)
                try:
                    self._wake()
                except RuntimeError as error:  # the container may have no more threads
                    self._do_without(error)

    def completed(self, wait_s: float) -> TransferResults:
        """What ended since the last call."""
        with self._changed:
            if wait_s and self._open:
                before = self._settled
                self._changed.wait_for(lambda: self._settled > before, wait_s)
            through = self._settled
            done = TransferResults(
                through=through,
                loaded=tuple(block for step, block in self._loaded if step <= through),
                num_stored=self._num_stored,
                load_s=self._load_s,
                store_s=self._store_s,
            )
            self._loaded = [one for one in self._loaded if one[0] > through]
            self._num_stored = 0
            self._load_s = self._store_s = 0.0
            return done

    def changes(self) -> HostChanges | None:
        """Of the file, by whichever process."""
        return self._store.changes()

    def forget(self) -> None:
        """Erase the file next. What is queued is dropped: what it would store is forgotten, what it loads is a miss."""
        self._store.begin_forgetting()
        with self._changed:
            self._erase = True
            self._clear()
            self._wake()

    @property
    def _settled(self) -> int:
        """The last plan of which, as of all before it, nothing is left."""
        return next(iter(self._open)) - 1 if self._open else self._last_step

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = self._started()
        self._changed.notify_all()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name="kv-transfers", daemon=True)
        thread.start()
        return thread

    def _do_without(self, error: RuntimeError) -> None:
        """End what is queued, and drop at once what is to be dropped; another plan may get a thread."""
        if not self._has_warned:
            self._has_warned = True
            LOG.warning("the thread that copies blocks to and from the host cannot be started: %s", error)
        for _, _, dropped in self._stores:
            if dropped:
                self._store.drop(dropped)
        self._clear()

    def _clear(self) -> None:
        for queue in (self._loads, self._stores):
            while queue:
                self._finish(queue.popleft()[0])

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._erase or self._loads or self._stores)
                erase, self._erase = self._erase, False
                load = self._loads.popleft() if self._loads else None
                store = self._stores.popleft() if self._stores and load is None else None
            if erase and not self._store.forget():  # until then nothing is found and nothing kept
                time.sleep(RETRY_S)
                with self._changed:
                    self._erase = True
            if load is not None:
                self._load(*load)
            elif store is not None:
                self._keep(*store)

    def _load(self, step: int, batch: Sequence[BlockLoad]) -> None:
        start = time.perf_counter()
        places = [self._place(one.block) for one in batch]
        wanted = [(one.key, place.reshape(-1).data) for one, place in zip(batch, places, strict=True)]
        try:
            found = self._store.get(wanted)
        except Exception:
            LOG.exception("blocks could not be loaded from the host")
            found = [False] * len(batch)
        loaded = [index for index, is_there in enumerate(found) if is_there]
        if len(self._blocks) > 1:
            for index in loaded:
                self._blocks[:, batch[index].block] = places[index]
        with self._changed:
            self._loaded += [(step, batch[index].block) for index in loaded]
            self._load_s += time.perf_counter() - start
            self._finish(step)

    def _keep(self, step: int, batch: Sequence[BlockStore], dropped: Sequence[bytes]) -> None:
        start, count = time.perf_counter(), 0
        try:
            if dropped:
                self._store.drop(dropped)
            count = self._store.put([(one.key, self._content(one.block)) for one in batch])
        except Exception:
            LOG.exception("blocks could not be kept on the host")
        with self._changed:
            self._num_stored += count
            if count:
                self._store_s += time.perf_counter() - start
            self._finish(step)

    def _finish(self, step: int) -> None:
        self._open[step] -= 1
        if not self._open[step]:
            del self._open[step]
        self._changed.notify_all()

    def _place(self, block: int) -> NDArray[np.uint8]:
        """(pieces, piece_bytes) to read into: the block itself where it is one piece, else memory of its own."""
        block_memory = self._blocks[:, block]
        return block_memory if len(block_memory) == 1 else np.empty_like(block_memory, order="C")

    def _content(self, block: int) -> memoryview:
        """The block itself where it is one piece, else a copy."""
        content: memoryview = np.ascontiguousarray(self._blocks[:, block]).reshape(-1).data
        return content
