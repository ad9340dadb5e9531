"""Unpacks the archives of a model in a thread while their bytes come. Called by `model_store`, which uses what was
written only when every archive was compared with its checksum.
"""

import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
    ended, asked, unpacked = threading.Event(), threading.Event(), threading.Event()
    opened, streams = ExitStack(), list[_Growing]()  # they stay open, so that no other file has the number of one

    def check() -> None:
        if ended.is_set():
            raise EOFError("the download ended")
        if not all(stream.is_there() for stream in streams):
            raise EOFError("it is fetched again")

    def run() -> None:
        try:
            for archive in archives:
                streams.append(opened.enter_context(_Growing(_begun(archive.path, check), archive, check)))
                archive.unpack(cast(IO[bytes], opened.enter_context(io.BufferedReader(streams[-1]))))
            while archives and not asked.wait(LOOK_S):
                check()
            unpacked.set()
        except Exception:  # noqa: BLE001 -- see above
            opened.close()  # a file that is removed takes disk as long as it is open

    def are_unpacked() -> bool:
        asked.set()
        thread.join()
        return bool(archives) and unpacked.is_set() and all(stream.is_there() for stream in streams)

    thread = threading.Thread(target=run, name="unpacking", daemon=True)
    thread.start()
    try:
        yield are_unpacked
    finally:
        ended.set()
        asked.set()
        thread.join()
        opened.close()


def _begun(path: Path, check: Callable[[], None]) -> io.FileIO:
    """A file once it is there. Raises as check, which is called until then."""
    while True:
        with suppress(FileNotFoundError):
            return io.FileIO(path)
        check()
        time.sleep(LOOK_S)


class _Growing(io.RawIOBase):
    """A file that grows to its size: reading waits for bytes."""

    def __init__(self, stream: io.FileIO, archive: ComingArchive, check: Callable[[], None]) -> None:
        """check: raises EOFError where no more bytes come, or none are wanted."""
        self._stream, self._archive, self._check = stream, archive, check

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
        """Raises as check."""
        self._check()
        while not (count := self._stream.readinto(buffer)) and self._stream.tell() < self._archive.size:
            self._check()
            time.sleep(LOOK_S)
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
