"""Unpacks the archives of a model in a thread while their bytes come. Called by `model_store`, which uses what was
written only when every archive was compared with its checksum.
"""

import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LOOK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingArchive:
    """path: where its bytes come. size: of all of it. unpack: takes all of it, in order."""

    path: Path
    size: int
    unpack: Callable[[IO[bytes]], None]


@contextmanager
def unpacked_ahead(archives: Sequence[ComingArchive]) -> Iterator[Callable[[], bool]]:
    """Unpack one archive after the other. The value waits for the last one, and returns whether all were unpacked, and
    from the files that are there now: one that is fetched again is another file.

    An error is no error of the download: who gets False unpacks the whole archives, and finds it again.
    """
    ended, read, opened = threading.Event(), list[_Growing](), ExitStack()

    def run() -> None:
        try:
            for archive in archives:
                growing = opened.enter_context(_Growing(archive, ended))
                # It stays open, so that no other file has its number meanwhile.
                archive.unpack(cast(IO[bytes], opened.enter_context(io.BufferedReader(growing))))
                read.append(growing)
        except Exception:  # noqa: BLE001 -- see above
            return

    def are_unpacked() -> bool:
        thread.join()
        return bool(archives) and len(read) == len(archives) and all(one.is_there() for one in read)

    thread = threading.Thread(target=run, name="unpacking", daemon=True)
    thread.start()
    try:
        yield are_unpacked
    finally:
        ended.set()
        thread.join()
        opened.close()


class _Growing(io.RawIOBase):
    """A file that grows to its size: reading waits for bytes."""

    def __init__(self, archive: ComingArchive, ended: threading.Event) -> None:
        """Waits until it has begun. Raises EOFError where it ends before."""
        super().__init__()
        self._archive, self._ended = archive, ended
        while True:
            try:
                self._stream = archive.path.open("rb", buffering=0)
                break
            except FileNotFoundError:
                self._wait()

    def is_there(self) -> bool:
        """Whether its path is this very file."""
        try:
            return os.path.samestat(os.fstat(self._stream.fileno()), self._archive.path.stat())
        except FileNotFoundError:
            return False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Raises EOFError where no more bytes come, or none are wanted."""
        if self._ended.is_set():
            raise EOFError("the download ended")
        while not (count := self._stream.readinto(buffer)) and self._stream.tell() < self._archive.size:
            if not self.is_there():
                raise EOFError("it is fetched again")
            self._wait()
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()

    def _wait(self) -> None:
        if self._ended.wait(LOOK_S):
            raise EOFError("the download ended")
