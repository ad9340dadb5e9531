"""The bytes of one file of a source on the disk, with the stated checksum, however often the connection breaks.

Called by `model_store` and `hub_cache`, which decide where a file lies and which process fetches it.
"""

import shutil
import time
from collections.abc import Callable
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import Final

from kvasir_api.forecast import readable
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.model_files import BrokenTransferError, Checksum, RemoteFile
from kvasir_runtime.fetch.partial_file import PartialFile

DISK_IS_FULL: Final = (ENOSPC, EDQUOT, EFBIG)
_MORE_ROOM: Final = "give its cache more room"
_TRIES: Final = 5
"""In a row without a byte."""
_WAIT_S: Final = 0.5
"""Before the second try; doubled with each further one."""


class FileTransfer:
    """Fetches files of one model. uri: for messages. arrival: of a start that may end it, None for none."""

    def __init__(self, uri: str, sleep: Callable[[float], None] = time.sleep, arrival: Arrival | None = None) -> None:
        self._uri, self._sleep, self._arrival = uri, sleep, arrival if arrival is not None else Arrival(None)

    def receive(self, file: RemoteFile, partial: Path) -> None:
        """Complete a file that may be there in part, and compare it. Raises ModelUnavailableError and OSError.

        One with another checksum is fetched again, once more if a process before this one began it.
        """
        stated = self._tried(file, file.checksum)
        for _ in range(2 + partial.exists()):
            with PartialFile(partial, stated) as stored:
                self._arrival.comes(file.name)
                self._fetch(file, stored)
                if stored.is_whole(file.size):
                    return
            partial.unlink()  # one that a process before this one began may be of another content
        raise ModelUnavailableError(
            f"model {self._uri} comes with another checksum of {file.name} than was stated, fetched twice; a proxy"
            " on the way may change it, or the stated one is wrong"
        )

    def _fetch(self, file: RemoteFile, stored: PartialFile) -> None:
        """What is missing of a file's bytes."""
        failures = 0
        while (before := stored.size) < file.size:
            try:
                _append(file, stored, self._arrival.check)
            except BrokenTransferError as error:
                failures = 0 if stored.size > before else failures + 1
                self._again(file, error, failures)

    def _tried(self, file: RemoteFile, ask: Callable[[], Checksum | None]) -> Checksum | None:
        failures = 0
        while True:
            try:
                return ask()
            except BrokenTransferError as error:
                failures += 1
                self._again(file, error, failures)

    def _again(self, file: RemoteFile, error: BrokenTransferError, failures: int) -> None:
        if failures >= _TRIES:
            raise ModelUnavailableError(
                f"model {self._uri} could not be fetched: {file.name}: {error.told()}"
            ) from error
        self._sleep(_WAIT_S * 2**failures)


def check_space(uri: str, cache: Path, rest_bytes: int) -> None:
    """Raises ModelUnavailableError where the disk of a cache has less room than the rest of a model takes."""
    there = next(path for path in (cache, *cache.parents) if path.exists())
    if rest_bytes > (free := shutil.disk_usage(there).free):
        raise ModelUnavailableError(
            f"model {uri} needs {readable(rest_bytes)} of disk in {cache}, where {readable(free)} are free; free some"
            f" there, or {_MORE_ROOM}"
        )


def not_stored(uri: str, error: OSError) -> ModelUnavailableError:
    """What is said of a model that the disk does not take."""
    advice = _MORE_ROOM if error.errno in DISK_IS_FULL else "check the disk of its cache, and who may write there"
    return ModelUnavailableError(f"model {uri} could not be stored: {error}; {advice}")


def _append(file: RemoteFile, stored: PartialFile, check: Callable[[], None]) -> None:
    """Write the bytes that a source sends behind those that are there. Raises BrokenTransferError, and as check."""
    with file.opened(stored.size) as transfer:
        if transfer.start not in (0, stored.size):
            raise BrokenTransferError(f"it was asked for byte {stored.size} and sent from byte {transfer.start} on")
        if transfer.start < stored.size:
            stored.begin_again()  # it sends all again where it knows no parts
        for piece in transfer.pieces:
            check()
            stored.append(piece)
            if stored.size > file.size:
                return
    if stored.size < file.size:
        raise BrokenTransferError(f"it ended after {stored.size} of {file.size} bytes")
