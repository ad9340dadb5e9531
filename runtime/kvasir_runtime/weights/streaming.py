"""Reads pieces of files with several threads into a ring of buffers, and places each as soon as it is there.

A piece whose bytes are already what is wanted is read to where it belongs, without a buffer.

Called by `loader`. One reader waits for one answer of the disk at a time and reaches a fraction of what it gives; eight
keep it busy. The threads only move bytes (preadv releases the interpreter's lock); everything with tensors is done by
the caller's thread, in whatever order pieces come. Memory is bounded by the ring: a reader without a buffer waits.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError
from kvasir_runtime.weights.staging import CopyEvent, Put, Staging

Preadv = Callable[[int, list[memoryview], int], int]
"""os.preadv: may read less than asked for, 0 at the end of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """Bytes of a file that are read together, and what is done with them.

    into: where they belong as they are, (num_bytes,) uint8 on the host; then nothing is put.
    """

    path: Path
    start: int
    num_bytes: int
    put: Put
    into: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRing:
    """threads: that read. buffers: at least 2, half of which may wait for their copies."""

    threads: int
    buffers: int


MOST_BYTES: Final = 1 << 28
"""Of all buffers of a ring, as long as two of them fit."""
ON_CPU: Final = BufferRing(threads=4, buffers=8)
ON_CUDA: Final = BufferRing(threads=8, buffers=16)


def ring_of(device: torch.device) -> BufferRing:
    """On a CPU the readers share the cores with what converts the pieces."""
    return ON_CPU if device.type == "cpu" else ON_CUDA


def stream(
    pieces: Sequence[FilePiece],
    staging: Staging,
    ring: BufferRing,
    on_placed: Callable[[FilePiece], None],
    preadv: Preadv = os.preadv,
) -> None:
    """Read and place all pieces. on_placed is called after each, in this thread.

    Raises ModelError that names the file which cannot be read or ends too early, or whatever put or on_placed raise;
    then no thread is left and no buffer is written any more.
    """
    if not pieces:
        return
    buffered = [piece.num_bytes for piece in pieces if piece.into is None]
    most = max(buffered, default=0)
    count = min(ring.buffers, len(buffered) + 1, max(2, MOST_BYTES // max(most, 1))) if buffered else 0
    buffers = [staging.buffer(most) for _ in range(count)]
    under_way: deque[tuple[CopyEvent, Tensor]] = deque()
    with _reading(pieces, buffers, min(ring.threads, len(pieces)), preadv) as (filled, free):
        for _ in pieces:
            taken = filled.get()
            if isinstance(taken, BaseException):
                raise taken
            piece, buffer = taken
            if buffer is None:
                on_placed(piece)
                continue
            mark = staging.place(buffer[: piece.num_bytes], piece.put)
            if mark is None:
                free.put(buffer)
            else:
                under_way.append((mark, buffer))
            # Half of the ring stays with the readers, so that neither side waits for the other for good.
            while len(under_way) > max(1, count // 2):
                oldest, buffer = under_way.popleft()
                oldest.synchronize()
                free.put(buffer)
            on_placed(piece)
    staging.finish()


_Filled = queue.SimpleQueue[tuple[FilePiece, Tensor | None] | BaseException]
_Free = queue.SimpleQueue[Tensor | None]


@contextmanager
def _reading(
    pieces: Sequence[FilePiece], buffers: Sequence[Tensor], num_threads: int, preadv: Preadv
) -> Iterator[tuple[_Filled, _Free]]:
    """Queues of filled buffers and of those that may be filled. Threads end with the block, however it ends."""
    filled, free = _Filled(), _Free()
    for buffer in buffers:
        free.put(buffer)
    reader = _Reader(pieces, filled, free, preadv)
    threads = [threading.Thread(target=reader.run, name=f"weights {n}", daemon=True) for n in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield filled, free
    finally:
        reader.stopping.set()
        for _ in threads:
            free.put(None)
        for thread in threads:
            thread.join()


class _Reader:
    """What every thread runs: take the next piece, and a buffer if it needs one, and fill it."""

    def __init__(self, pieces: Sequence[FilePiece], filled: _Filled, free: _Free, preadv: Preadv) -> None:
        self.stopping = threading.Event()
        of_files = dict[Path, deque[FilePiece]]()
        for piece in sorted(pieces, key=lambda piece: (piece.path, piece.start)):  # as a download brings them
            of_files.setdefault(piece.path, deque()).append(piece)
        self._of_files = list(of_files.values())
        self._lock = threading.Lock()
        self._filled = filled
        self._free = free
        self._preadv = preadv

    def run(self) -> None:
        try:
            with ExitStack() as files:
                self._read(_Files(files, self.stopping))
        except BaseException as error:  # noqa: BLE001 -- raised again in the thread that waits for the piece
            self._filled.put(error)

    def _read(self, files: "_Files") -> None:
        while not self.stopping.is_set():
            if (piece := self._next()) is None:
                return
            buffer = self._free.get() if piece.into is None else None
            target = buffer if piece.into is None else piece.into
            if target is None:
                return  # woken to end
            try:
                self._fill(files.descriptor(piece), piece, target)
            except OSError as error:
                raise ModelError(f"{piece.path} cannot be read: {error.strerror or error}") from error
            self._filled.put((piece, buffer))

    def _next(self) -> FilePiece | None:
        """The next piece of the first file of which one is there; None where there is none any more, or to end."""
        while not self.stopping.is_set():
            with self._lock:
                for pieces in self._of_files:
                    if arriving.readable(pieces[0].path, pieces[0].start + pieces[0].num_bytes) is not None:
                        piece = pieces.popleft()
                        if not pieces:
                            self._of_files.remove(pieces)
                        return piece
                if not self._of_files:
                    return None
            self.stopping.wait(arriving.LOOK_S)
        return None

    def _fill(self, descriptor: int, piece: FilePiece, target: Tensor) -> None:
        view, done = target.numpy().data[: piece.num_bytes], 0
        while done < piece.num_bytes and not self.stopping.is_set():
            got = self._preadv(descriptor, [view[done:]], piece.start + done)
            if not got:
                raise ModelError(f"{piece.path} is truncated or damaged: it became shorter while it was read")
            done += got


class _Files:
    """One thread's own descriptors: the kernel reads ahead for each by itself."""

    def __init__(self, stack: ExitStack, stopping: threading.Event) -> None:
        """stopping: set when no piece is wanted any more."""
        self._stack, self._stopping = stack, stopping
        self._opened: dict[Path, int] = {}

    def descriptor(self, piece: FilePiece) -> int:
        """Of its file, which is the same when that is whole. Raises OSError and ModelError, also where it stops."""
        if piece.path not in self._opened:

            def sleep(seconds: float) -> None:
                if self._stopping.wait(seconds):
                    raise ModelError(f"{piece.path.name} is not read any more")

            stream = arriving.opened(piece.path, piece.start + piece.num_bytes, sleep)
            self._opened[piece.path] = self._stack.enter_context(stream).fileno()
        return self._opened[piece.path]
