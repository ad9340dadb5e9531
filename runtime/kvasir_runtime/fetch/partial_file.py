"""A file that grows on the disk while it is fetched, with the digest of its bytes. Called by `file_transfer`."""

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kvasir_runtime.fetch.model_files import Checksum

_READ_BYTES: Final = 1 << 20


class PartialFile:
    """It only grows. One that is begun again is another file, so that who reads it meanwhile never sees it change.

    size: bytes that are there.
    """

    def __init__(self, path: Path, stated: Checksum | None) -> None:
        """path: of the file, which may be there in part. stated: what all of it is compared with. Raises OSError."""
        self._path, self._stated = path, stated
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def append(self, piece: bytes) -> None:
        """The next bytes."""
        self._stream.write(piece)
        self._stream.flush()  # for who reads it meanwhile
        self._count(piece)

    def begin_again(self) -> None:
        """Without a byte."""
        self._stream.close()
        self._path.unlink()
        self._open()

    def is_whole(self, size: int) -> bool:
        """Whether the disk has so many bytes with the stated checksum."""
        os.fsync(self._stream.fileno())
        return self._path.stat().st_size == self.size == size and (self._digest is None or self._digest.matches())

    def _open(self) -> None:
        self._stream = self._path.open("a+b")
        self._digest = None if self._stated is None else self._stated.digest()
        self.size = 0
        self._stream.seek(0)
        while piece := self._stream.read(_READ_BYTES):
            self._count(piece)

    def _count(self, piece: bytes) -> None:
        self.size += len(piece)
        if self._digest is not None:
            self._digest.update(piece)
