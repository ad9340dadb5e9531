"""The calls of the operating system on a file of blocks: lock, make, read and write. Called by `file_store`."""

import fcntl
import os
import time
from typing import Final

from kvasir_runtime.runner.kv_offload.store_layout import StoreHeader

LOCK_POLL_S: Final = 0.001


class LockBusyError(OSError):
    """Another process holds the lock of the file for too long."""


def lock(descriptor: int, wait_s: float) -> None:
    """Wait a moment for the lock of a file. Raises OSError where another process keeps it."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise LockBusyError("another process holds its lock") from None
            time.sleep(LOCK_POLL_S)


def unlock(descriptor: int) -> None:
    """Give the lock up."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def make(descriptor: int, header: StoreHeader) -> None:
    """Cut a file to nothing and make an empty one. Only header and table take room at once. Raises OSError."""
    os.ftruncate(descriptor, 0)
    os.posix_fallocate(descriptor, 0, header.slots_at)
    os.ftruncate(descriptor, header.file_bytes)
    os.pwrite(descriptor, header.encoded(), 0)


def write(descriptor: int, offset: int, content: bytes | memoryview) -> None:
    """Write all of it. Raises OSError."""
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        offset, rest = offset + written, rest[written:]


def read(descriptor: int, offset: int, place: memoryview) -> bool:
    """Whether all of a place could be read."""
    rest = place
    try:
        while rest:
            count = os.preadv(descriptor, [rest], offset)
            if not count:
                return False
            offset, rest = offset + count, rest[count:]
    except OSError:
        return False
    return True
