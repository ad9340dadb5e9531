"""Blocks in a file that replicas of a service on one node share and that a restarted one finds again.

Written and read with positional calls, never mapped: a file that is cut short or a full disk is an error to handle and
not a signal that ends the process. On tmpfs the file is shared memory. Any number of processes may have it open:

- Entries change under a lock on the file. It is waited for a moment only; without it blocks are not stored.
- An entry is emptied before its slot is written and filled afterwards: a process that dies leaves no half block.
- Readers take no lock. What they read counts when its checksum is that of the key and the block together.

No failure here raises: what cannot be written is not kept, what cannot be read is a miss.
"""

import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from kvasir_runtime.core.plan import HostChanges
from kvasir_runtime.runner.kv_offload import store_file, store_layout
from kvasir_runtime.runner.kv_offload.slot_table import SlotTable
from kvasir_runtime.runner.kv_offload.store_file import LockBusyError
from kvasir_runtime.runner.kv_offload.store_layout import EMPTY, StoreHeader

LOG = logging.getLogger(__name__)
SUFFIX: Final = ".kvblocks"
LOCK_S: Final = 0.2
"""Longer than any holder takes unless it is stopped; then others go on without."""
READS: Final = 3
"""Of a header that another process may be writing."""
QUIET_S: Final = 60.0
"""Between two log lines about failed writes."""


class _Reserved(NamedTuple):
    """A slot to be written. sequence: of the empty entry that reserves it."""

    slot: int
    sequence: int
    key: bytes
    content: memoryview


class Located(NamedTuple):
    """Where a block is in the file, and the checksum of its key and content."""

    offset: int
    block_crc: int


class FileStore:
    """One process's access to a file. Called by one thread; `changes`, `located` and `forget` by any."""

    def __init__(self, descriptor: int, header: StoreHeader, *, is_watched: bool) -> None:
        """Call `open_store`. descriptor: open for reading and writing, owned by this object from now on."""
        self._file = descriptor
        self._header = header
        self._table = SlotTable(header.num_slots, is_watched=is_watched)
        self._crcs = [0] * header.num_slots
        self._sequences = [0] * header.num_slots
        self._seen = 0
        self._guard = threading.Lock()
        self._forgetting = False
        self._unwanted: set[bytes] = set()
        """Keys of blocks that are to be dropped once the file can be locked."""
        self._warned_at = float("-inf")
        self._sync_or_reset()

    @property
    def salt(self) -> bytes:
        """Secret of the file, from which hashes of its blocks begin."""
        return self._header.salt

    @property
    def num_slots(self) -> int:
        """Blocks that it holds at most."""
        return self._header.num_slots

    def changes(self) -> HostChanges | None:
        """What the file holds and did not at the last call, whichever process wrote it; None as well while it is busy.

        Costs 2 microseconds where nothing changed; else the table is read, 0.1 milliseconds for 8,000 slots.
        """
        if not self._guard.acquire(blocking=False):
            return None
        try:
            self._sync()
            return self._table.changes()
        except OSError:
            return self._table.changes()
        finally:
            self._guard.release()

    def put(self, blocks: Sequence[tuple[bytes, memoryview]], crcs: Mapping[bytes, int] | None = None) -> int:
        """Keep blocks, each with its key; those that are there already are kept longer. How many were copied.

        crcs: checksums that are known, by key; of other blocks they are computed.
        """
        if self._forgetting:
            return 0
        fresh: list[_Reserved] = []
        try:
            with self._locked(LOCK_S):
                self._reserve(blocks, fresh)
            written = self._write_slots(fresh, crcs or {})
            with self._locked(LOCK_S):
                return self._fill(written)
        except OSError as error:
            self._warn("blocks are not kept in the KV cache's file", error)
            return 0
        finally:
            self._give_up(fresh)

    def get(self, blocks: Sequence[tuple[bytes, memoryview]]) -> list[bool]:
        """Copy blocks from the file to the places given. False for each that it does not hold whole; then the place has
        undefined content.
        """
        found: list[bool] = []
        touched: list[tuple[int, bytes]] = []
        damaged: list[tuple[int, bytes]] = []
        with self._guard:
            self._sync_or_reset()
            hidden = {key for key, _ in blocks} if self._forgetting else self._unwanted
            slots = [None if key in hidden else self._table.find(key) for key, _ in blocks]
            crcs = [0 if slot is None else self._crcs[slot] for slot in slots]
            header = self._header
        for (key, place), slot, crc in zip(blocks, slots, crcs, strict=True):
            whole = slot is not None and store_file.read(self._file, header.slot_at(slot), place)
            is_right = whole and crc32(place, crc32(key)) == crc
            found.append(is_right)
            if slot is not None:
                (touched if is_right else damaged).append((slot, key))
        try:
            with self._locked(wait_s=0.0):
                self._renew(reversed(touched), damaged)
        except LockBusyError:
            pass  # requests wait for what was read, and other blocks are renewed soon
        except OSError as error:
            self._warn("blocks that were read could not be renewed in the KV cache's file", error)
        return found

    @property
    def descriptor(self) -> int:
        """Of the open file, for reading what was located."""
        return self._file

    @property
    def block_bytes(self) -> int:
        """Of every block."""
        return self._header.block_bytes

    def located(self, keys: Sequence[bytes]) -> list[Located | None]:
        """Where blocks are now; None for each that the file does not hold. Another block may take the place at any
        time: what is read there counts when its checksum is right.
        """
        with self._guard:
            self._sync_or_reset()
            hidden = set(keys) if self._forgetting else self._unwanted
            slots = [None if key in hidden else self._table.find(key) for key in keys]
            header, crcs = self._header, self._crcs
            return [None if slot is None else Located(header.slot_at(slot), crcs[slot]) for slot in slots]

    def drop(self, keys: Sequence[bytes]) -> None:
        """Hold these blocks no more, for all processes that share the file; at once for this one."""
        with self._guard:
            self._unwanted.update(keys)
        try:
            with self._locked(LOCK_S):
                pass
        except OSError as error:
            self._warn("blocks are dropped later from the KV cache's file", error)

    def begin_forgetting(self) -> None:
        """From now on nothing is found and nothing kept, until `forget` has erased the file."""
        self._forgetting = True

    def forget(self) -> bool:
        """Erase every block, of all processes that share the file. False where it has to be tried again."""
        try:
            with self._locked(LOCK_S):
                self._format(self._header.epoch + 1)
        except OSError as error:
            LOG.error("the blocks in the KV cache's file could not be erased: %s", _reason(error))  # noqa: TRY400
            return False
        self._forgetting = False
        return True

    def close(self) -> None:
        """No call follows."""
        os.close(self._file)

    @contextmanager
    def _locked(self, wait_s: float) -> Iterator[None]:
        """Alone among processes, and up to date with them. Raises OSError."""
        store_file.lock(self._file, wait_s)
        try:
            with self._guard:
                if not self._sync():
                    self._format(self._header.epoch + 1)
                if self._unwanted:
                    self._empty_unwanted()
                yield
        finally:
            store_file.unlock(self._file)

    def _sync(self) -> bool:
        """Take in what others wrote. False where the file is damaged beyond its entries. Raises OSError."""
        header = None
        for _ in range(READS):
            header = header or store_layout.decoded(os.pread(self._file, store_layout.HEADER_BYTES, 0))
        if header is None or header.block_bytes != self._header.block_bytes:
            self._adopt(self._header)
            return False
        if header.epoch != self._header.epoch or header.num_slots != self._header.num_slots:
            self._adopt(header)
        if header.changes != self._seen:
            size = header.num_slots * store_layout.ENTRY_BYTES
            table = os.pread(self._file, size, store_layout.PAGE)
            table = table[: len(table) // store_layout.ENTRY_BYTES * store_layout.ENTRY_BYTES]
            for slot, sequence, key, block_crc in store_layout.entries_since(table, self._seen):
                self._take_in(slot, sequence, key, block_crc)
            self._seen = header.changes
            self._header = header
        return True

    def _sync_or_reset(self) -> None:
        try:
            self._sync()
        except OSError:
            self._adopt(self._header)

    def _adopt(self, header: StoreHeader) -> None:
        """Nothing is known of the entries: the file was emptied, perhaps with another size, or could not be read."""
        self._header = header
        self._table.reset(header.num_slots)
        self._crcs, self._sequences = [0] * header.num_slots, [0] * header.num_slots
        self._seen = 0

    def _take_in(self, slot: int, sequence: int, key: bytes, block_crc: int) -> None:
        if self._sequences[slot] == sequence and self._crcs[slot] == block_crc:
            return
        self._sequences[slot], self._crcs[slot] = sequence, block_crc
        if key == EMPTY:
            self._table.drop(slot)
            if sequence:  # another process writes it now: it is given away last
                self._table.touch(slot)
        elif self._table.holder(slot) == key:
            self._table.touch(slot)
        else:
            self._table.put(slot, key)

    def _reserve(self, blocks: Sequence[tuple[bytes, memoryview]], fresh: list[_Reserved]) -> None:
        """Add slots for the blocks that are not there to fresh."""
        for key, content in blocks:
            slot = self._table.find(key)
            if slot is not None:
                self._table.touch(slot)
                self._enter(slot, key, self._crcs[slot])
                continue
            slot = self._table.reserve()
            if slot is None:
                break
            fresh.append(_Reserved(slot, self._seen + 1, key, content))
            self._enter(slot, EMPTY, 0)
        self._save()

    def _write_slots(self, fresh: list[_Reserved], crcs: Mapping[bytes, int]) -> list[tuple[_Reserved, int]]:
        """Those that could be written, with their checksums."""
        written = []
        header = self._header
        for one in fresh:
            try:
                store_file.write(self._file, header.slot_at(one.slot), one.content)
            except OSError as error:
                self._warn("blocks are not kept in the KV cache's file", error)
            else:
                known = crcs.get(one.key)
                written.append((one, crc32(one.content, crc32(one.key)) if known is None else known))
        return written

    def _fill(self, written: list[tuple[_Reserved, int]]) -> int:
        """Enter the blocks that were written, unless another process has taken their slots meanwhile."""
        count = 0
        for one, block_crc in written:
            if self._is_ours(one) and not self._forgetting:
                self._enter(one.slot, one.key, block_crc)
                self._table.put(one.slot, one.key)
                count += 1
        self._save()
        return count

    def _give_up(self, fresh: list[_Reserved]) -> None:
        """Slots that were reserved and not filled may be used again."""
        with self._guard:
            for one in fresh:
                if self._is_ours(one):
                    self._table.drop(one.slot)

    def _is_ours(self, one: _Reserved) -> bool:
        """Whether a slot's entry is still the empty one that reserved it."""
        return one.slot < len(self._sequences) and self._sequences[one.slot] == one.sequence

    def _renew(self, touched: Iterator[tuple[int, bytes]], damaged: list[tuple[int, bytes]]) -> None:
        """Keep longer what was read, and empty what was damaged; only where the slot still holds the same."""
        for slot, key in touched:
            if slot < self.num_slots and self._table.holder(slot) == key:
                self._table.touch(slot)
                self._enter(slot, key, self._crcs[slot])
        for slot, key in damaged:
            if slot < self.num_slots and self._table.holder(slot) == key:
                self._table.drop(slot)
                self._enter(slot, EMPTY, 0)
        self._save()

    def _empty_unwanted(self) -> None:
        """Empty the slots of all blocks that are to be dropped."""
        found = [(slot, key) for key in self._unwanted if (slot := self._table.find(key)) is not None]
        self._renew(iter(()), found)
        self._unwanted.clear()

    def _enter(self, slot: int, key: bytes, block_crc: int) -> None:
        """Write an entry, with the next sequence number."""
        self._seen += 1
        self._sequences[slot], self._crcs[slot] = self._seen, block_crc
        store_file.write(self._file, store_layout.entry_at(slot), store_layout.entry(key, block_crc, self._seen))

    def _save(self) -> None:
        if self._seen != self._header.changes:
            self._header = replace(self._header, changes=self._seen)
            store_file.write(self._file, 0, self._header.encoded())

    def _format(self, epoch: int) -> None:
        """An empty file: cut to nothing first, so that the file system returns what it held."""
        header = replace(self._header, epoch=epoch, changes=0)
        store_file.make(self._file, header)
        self._adopt(header)

    def _warn(self, what: str, error: OSError) -> None:
        now = time.monotonic()
        if now >= self._warned_at + QUIET_S:
            self._warned_at = now
            LOG.warning("%s: %s", what, _reason(error))


def open_store(folder: Path, name: str, block_bytes: int, limit_bytes: int, *, is_watched: bool = True) -> FileStore:
    """The file of a name in a folder, made where it is not there, emptied where it has another size or is damaged.

    name: hexadecimal, of everything that the content of a block depends on. limit_bytes: of the whole file; it must
    hold a block. is_watched: `changes` is called now and then; else nothing is recorded for it. Raises OSError where
    the file cannot be used, or belongs to another user.
    """
    num_slots = store_layout.num_slots(limit_bytes, block_bytes)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(folder / f"{name}{SUFFIX}", flags, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError("the file belongs to another user, or others may read it")
        salt = secrets.token_bytes(store_layout.SALT_BYTES)
        fresh = StoreHeader(block_bytes=block_bytes, num_slots=num_slots, epoch=0, changes=0, salt=salt)
        return _opened(descriptor, fresh, is_watched=is_watched)
    except BaseException:
        os.close(descriptor)
        raise


def _opened(descriptor: int, fresh: StoreHeader, *, is_watched: bool) -> FileStore:
    """The store of an open file; fresh: of the file as it would be made now."""
    store_file.lock(descriptor, LOCK_S)
    try:
        header = store_layout.decoded(os.pread(descriptor, store_layout.HEADER_BYTES, 0))
        wanted = (fresh.block_bytes, fresh.num_slots)
        if header is None or (header.block_bytes, header.num_slots) != wanted:
            if header is not None:  # with the same salt, processes with another limit still find each other's blocks
                fresh = replace(fresh, epoch=header.epoch + 1, salt=header.salt)
            store_file.make(descriptor, fresh)
            header = fresh
        elif os.fstat(descriptor).st_size < header.file_bytes:
            os.ftruncate(descriptor, header.file_bytes)
        return FileStore(descriptor, replace(header, changes=0), is_watched=is_watched)
    finally:
        store_file.unlock(descriptor)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
