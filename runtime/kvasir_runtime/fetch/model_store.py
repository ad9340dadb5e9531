"""A folder of models that were fetched: each version of one in a directory of its own, whole or not there.

Processes of several pods may share it, also of several nodes: one fetches, the others wait for its lock. A file that is
not whole stays as it is when its process dies, and the next one goes on with it. A directory is used once its mark is
there, which is written last.
"""

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import IO, Final

from kvasir_api import model_uri
from kvasir_api.forecast import readable
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import cache_limit
from kvasir_runtime.fetch.model_files import (
    BrokenTransferError,
    Checksum,
    RemoteFile,
    RemoteModel,
)
from kvasir_runtime.fetch.progress import OnBytes, watched
from kvasir_runtime.fetch.unpacking import BrokenArchiveError, unpack

_FILES_AT_ONCE: Final = 4
_TRIES: Final = 5
"""In a row without a byte."""
_WAIT_S: Final = 0.5
"""Before the second try; doubled with each further one."""
_READ_BYTES: Final = 1 << 20
_DISK_IS_FULL: Final = (ENOSPC, EDQUOT, EFBIG)
WHOLE: Final = ".whole"
_PARTIAL: Final = ".partial"


class ModelStore:
    """One version of a model in a folder of models."""

    def __init__(self, root: Path, uri: str, version: str, sleep: Callable[[float], None] = time.sleep) -> None:
        """uri: with or without a version of its own."""
        self._uri = model_uri.unpinned(uri)
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", self._uri)[-80:].strip("-.")
        digest = hashlib.sha256(f"{self._uri} {version}".encode()).hexdigest()[:16]
        self._root, self._folder, self._sleep = root, root / f"{slug}-{digest}", sleep

    @property
    def entry(self) -> Path:
        """The directory of this version, whole or not, with a name that people recognise."""
        return self._folder

    def whole(self) -> Path | None:
        """The directory with the model, None where it is not fetched yet."""
        return model_folder(self._folder) if (self._folder / WHOLE).is_file() else None

    def fetched(self, model: RemoteModel, on_bytes: OnBytes | None = None) -> Path:
        """The directory with the model after a download of what is missing. Raises ModelUnavailableError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with watched(lambda: self._held(model), model.size, on_bytes), self._locked():
                if (there := self.whole()) is not None:
                    return there
                self._check_space(model.unpacked_bytes - self._held(model))
                with ThreadPoolExecutor(max_workers=_FILES_AT_ONCE) as threads:
                    list(threads.map(self._fetch, model.files))
                self._unpack(model.files)
                (self._folder / WHOLE).touch()
                shutil.rmtree(self._partial, ignore_errors=True)
        except OSError as error:
            advice = "; give its cache more room" if error.errno in _DISK_IS_FULL else ""
            raise ModelUnavailableError(f"model {self._uri} could not be stored: {error}{advice}") from error
        return model_folder(self._folder)

    @property
    def _partial(self) -> Path:
        return self._folder / _PARTIAL

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """While other processes wait. The system frees it with the process."""
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _check_space(self, rest: int) -> None:
        free = shutil.disk_usage(self._folder).free
        if rest > free:
            raise ModelUnavailableError(
                f"model {self._uri} needs {readable(rest)} of disk in {self._root}, where {readable(free)} are free"
            )

    def _held(self, model: RemoteModel) -> int:
        """Bytes that are there, of other processes too."""
        return model.size if (self._folder / WHOLE).exists() else sum(map(self._held_of, model.files))

    def _held_of(self, file: RemoteFile) -> int:
        place, partial = self._places(file)
        with suppress(OSError):
            return file.size if place.exists() else partial.stat().st_size
        return 0

    def _places(self, file: RemoteFile) -> tuple[Path, Path]:
        """Where a file is once it is whole, which for an archive is an empty mark, and where its bytes come."""
        name = hashlib.sha256(file.name.encode()).hexdigest()[:16]
        place = self._partial / f"{name}.unpacked" if file.archive else self._folder / file.name
        return place, self._partial / name

    def _fetch(self, file: RemoteFile) -> None:
        place, partial = self._places(file)
        if place.exists():
            return
        partial.parent.mkdir(exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        stated = self._tried(file, file.checksum)
        for _ in range(2 + partial.exists()):
            self._receive(file, partial)
            if partial.stat().st_size == file.size and (stated is None or _matches(partial, stated)):
                break
            partial.unlink()  # one that a process before this one began may be of another content
        else:
            raise ModelUnavailableError(
                f"model {self._uri} comes with another checksum of {file.name} than was stated, fetched twice; a proxy"
                " on the way may change it, or the stated one is wrong"
            )
        if not file.archive:
            partial.replace(place)

    def _receive(self, file: RemoteFile, partial: Path) -> None:
        """Fetch what is missing of a file's bytes, however often the connection breaks while some come."""
        failures = 0
        with partial.open("ab") as stream:
            while (before := stream.seek(0, os.SEEK_END)) < file.size:
                try:
                    _append(file, stream, before)
                except BrokenTransferError as error:
                    failures = 0 if stream.seek(0, os.SEEK_END) > before else failures + 1
                    self._again(file, error, failures)
            stream.flush()
            os.fsync(stream.fileno())

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
            raise ModelUnavailableError(f"model {self._uri} could not be fetched: {file.name}: {error}") from error
        self._sleep(_WAIT_S * 2**failures)

    def _unpack(self, files: Sequence[RemoteFile]) -> None:
        """The archives, one over those before it; a file of its own is not written over."""
        given = {file.name for file in files if not file.archive}
        for file in files:
            mark, archive = self._places(file)
            if not file.archive or mark.exists():
                continue
            try:
                unpack(archive, file.archive, self._folder, given, self._reserve)
            except BrokenArchiveError as error:
                raise ModelUnavailableError(f"model {self._uri}: {file.name} cannot be unpacked: {error}") from error
            mark.touch()
            archive.unlink()

    def _reserve(self, num_bytes: int) -> None:
        self._check_space(num_bytes)
        cache_limit.make_room(self._folder, num_bytes)


def _append(file: RemoteFile, stream: IO[bytes], offset: int) -> None:
    """Write the bytes that a source sends behind those that are there. Raises BrokenTransferError."""
    with file.opened(offset) as transfer:
        if transfer.start not in (0, offset):
            raise BrokenTransferError(f"it was asked for byte {offset} and sent from byte {transfer.start} on")
        stream.truncate(transfer.start)  # it sends all again where it knows no parts
        end = transfer.start
        for piece in transfer.pieces:
            stream.write(piece)
            end += len(piece)
            if end > file.size:
                return
    if end < file.size:
        raise BrokenTransferError(f"it ended after {end} of {file.size} bytes")


def _matches(path: Path, stated: Checksum) -> bool:
    digest = stated.digest()
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
    return digest.matches()


def model_folder(folder: Path) -> Path:
    """The directory with the checkpoint: the folder, or the one within it that has a config.json."""
    if (folder / "config.json").is_file():
        return folder
    found = sorted(folder.rglob("config.json"), key=lambda path: len(path.parts))
    return found[0].parent if found else folder
