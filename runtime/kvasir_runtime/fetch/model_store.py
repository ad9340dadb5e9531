"""A folder of models that were fetched: each version of one in a directory of its own, whole or not there.

Processes of several pods may share it, also of several nodes: one fetches, the others wait for its lock. A file that is
not whole stays as it is when its process dies, and the next one goes on with it. A directory is used once its mark is
there, which is written last.
"""

import fcntl
import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Final

from kvasir_api import model_uri
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import cache_limit
from kvasir_runtime.fetch.archive_arrival import ArchiveArrival
from kvasir_runtime.fetch.arrival import LATE, Arrival, has_weights
from kvasir_runtime.fetch.file_transfer import FileTransfer, check_space, not_stored
from kvasir_runtime.fetch.model_files import RemoteFile, RemoteModel
from kvasir_runtime.fetch.model_folder import model_folder
from kvasir_runtime.fetch.progress import OnBytes, watched
from kvasir_runtime.fetch.unpacking import BrokenArchiveError, clear, unpack
from kvasir_runtime.fetch.unpacking_ahead import ComingArchive, unpacked_ahead

_FILES_AT_ONCE: Final = 4
WHOLE: Final = ".whole"
_PARTIAL: Final = ".partial"


class ModelStore:
    """One version of a model in a folder of models."""

    def __init__(
        self,
        root: Path,
        uri: str,
        version: str,
        sleep: Callable[[float], None] = time.sleep,
        arrival: Arrival | None = None,
    ) -> None:
        """uri: with or without a version of its own. arrival: of a start that goes on meanwhile."""
        self._uri = model_uri.unpinned(uri)
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", self._uri)[-80:].strip("-.")
        digest = hashlib.sha256(f"{self._uri} {version}".encode()).hexdigest()[:16]
        self._root, self._folder = root, root / f"{slug}-{digest}"
        self._transfer = FileTransfer(self._uri, sleep, arrival)
        self._arrival = arrival

    @property
    def entry(self) -> Path:
        """The directory of this version, whole or not, with a name that people recognise."""
        return self._folder

    def whole(self) -> Path | None:
        """The directory with the model, None where it is not fetched yet."""
        return model_folder(self._folder) if (self._folder / WHOLE).is_file() and not self.lost() else None

    def lost(self) -> str:
        """The first file that was there when all were, and is not any more; empty for one that was never whole."""
        try:
            names = (self._folder / WHOLE).read_text().splitlines()
        except FileNotFoundError:
            return ""
        return next((name for name in names if not (self._folder / name).is_file()), "")

    def fetched(self, model: RemoteModel, on_bytes: OnBytes | None = None) -> Path:
        """The directory with the model after a download of what is missing. Raises ModelUnavailableError."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with watched(lambda: self._held(model), model.size, on_bytes), self._locked():
                if (there := self.whole()) is not None:
                    return there
                self._forget_unpacked()
                with self._cleared(model.files):
                    rest_bytes = model.unpacked_bytes - self._held(model) - self._cleared_later(model.files)
                    check_space(self._uri, self._root, rest_bytes)
                    begun = self._archive_arrival(model)
                    with unpacked_ahead(self._coming(model, begun)) as are_unpacked:
                        self._fetch_all(model.files)
                        if not (are_there := are_unpacked()) and begun is not None:
                            begun.given_up()
                        self._unpack(model.files, are_there=are_there)
                (self._folder / WHOLE).write_text("".join(f"{name}\n" for name in self._names()))
                if begun is not None:
                    begun.compared(model_folder(self._folder))
                shutil.rmtree(self._partial, ignore_errors=True)
        except OSError as error:
            raise not_stored(self._uri, error) from error
        return model_folder(self._folder)

    def _fetch_all(self, files: Sequence[RemoteFile]) -> None:
        """Weights last: a start may go on when all else is there."""
        first = [file for file in files if not has_weights(file.name)]
        rest = [file for file in files if has_weights(file.name) and not self._places(file)[0].exists()]
        with ThreadPoolExecutor(max_workers=_FILES_AT_ONCE) as threads:
            list(threads.map(self._fetch, first))
            if self._arrival is not None and not any(file.archive for file in files):
                names = [file.name for file in files]
                self._arrival.begun(self._folder, names, rest, lambda file: self._places(file)[1])
            list(threads.map(self._fetch, rest))

    @property
    def _partial(self) -> Path:
        return self._folder / _PARTIAL

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """While other processes wait. The system frees it with the process."""
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _held(self, model: RemoteModel) -> int:
        """Bytes that are there, of other processes too."""
        return model.size if self.whole() is not None else sum(map(self._held_of, model.files))

    def _names(self) -> list[str]:
        """Of the files that are fetched or unpacked."""
        found = (path.relative_to(self._folder) for path in self._folder.rglob("*") if path.is_file())
        return sorted(path.as_posix() for path in found if path.parts[0][0] != ".")

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
        self._transfer.receive(file, partial)
        if not file.archive:
            partial.replace(place)
            if self._arrival is not None:
                self._arrival.arrived(file.name)

    def _archive_arrival(self, model: RemoteModel) -> ArchiveArrival | None:
        """Of a start that may load from the archives that a model is, while they are unpacked."""
        arrival = self._arrival
        if arrival is None or not arrival.loads_meanwhile or not all(file.archive for file in model.files):
            return None
        return ArchiveArrival(arrival)

    def _coming(self, model: RemoteModel, begun: ArchiveArrival | None) -> list[ComingArchive]:
        """The archives that are unpacked while they come: all, or none where one has its table at its end, where a
        process before this one has unpacked some, or where others may use what was whole."""
        archives = [file for file in model.files if file.archive]
        if (
            not archives
            or self._was_whole
            or any(file.archive == "zip" or self._places(file)[0].exists() for file in archives)
        ):
            return []
        given = _given(model.files)

        def unpack_to(file: RemoteFile, stream: IO[bytes]) -> None:
            assert file.archive
            seen = () if begun is None else (begun.grown, begun.removed)
            unpack(stream, file.archive, self._folder, given, lambda more: self._reserve(more, model), *seen)

        return [
            ComingArchive(path=self._places(file)[1], size=file.size, unpack=partial(unpack_to, file))
            for file in archives
        ]

    def _unpack(self, files: Sequence[RemoteFile], *, are_there: bool) -> None:
        """The archives, one over those before it; a file of its own is not written over. are_there: they were unpacked
        while they came."""
        given = _given(files)
        left = [file for file in files if file.archive and not self._places(file)[0].exists()]
        if left and not are_there:
            for name in (WHOLE, LATE):
                (self._folder / name).unlink(missing_ok=True)
            self._clear(files)  # what was sent before may have been of another content
        for file in left:
            mark, archive = self._places(file)
            try:
                if not are_there and file.archive:
                    with archive.open("rb") as stream:
                        unpack(stream, file.archive, self._folder, given, self._reserve)
            except BrokenArchiveError as error:
                raise ModelUnavailableError(f"model {self._uri}: {file.name} cannot be unpacked: {error}") from error
            mark.touch()
            archive.unlink()

    @contextmanager
    def _cleared(self, files: Sequence[RemoteFile]) -> Iterator[None]:
        """Nothing that was unpacked ahead is there before, of a process that died, nor after an error: it takes disk
        that is counted for what is unpacked next."""
        self._clear(files)
        try:
            yield
        except BaseException:
            self._clear(files)
            raise

    def _clear(self, files: Sequence[RemoteFile]) -> None:
        """Remove what archives wrote, where none is known to be whole."""
        archives = [file for file in files if file.archive]
        if archives and not self._was_whole and not any(self._places(file)[0].exists() for file in archives):
            clear(self._folder, _given(files))

    @property
    def _was_whole(self) -> bool:
        """Whether all was there, though files are lost since: the others stay until what replaces them has come."""
        return (self._folder / WHOLE).exists()

    def _forget_unpacked(self) -> None:
        """Of a process that died when all was there, archives are known to be unpacked of which files are lost."""
        for mark in self._partial.glob("*.unpacked") if self._was_whole else ():
            mark.unlink()

    def _cleared_later(self, files: Sequence[RemoteFile]) -> int:
        """Bytes that archives wrote and that give way to what is unpacked."""
        names = {*self._names()} - _given(files) if any(file.archive for file in files) else set[str]()
        return sum((self._folder / name).stat().st_size for name in names)

    def _reserve(self, num_bytes: int, coming: RemoteModel | None = None) -> None:
        """Raises ModelUnavailableError without the room. coming: of which the rest is to be stored, too."""
        check_space(self._uri, self._root, num_bytes + (coming.size - self._held(coming) if coming else 0))
        cache_limit.make_room(self._folder, num_bytes)


def _given(files: Sequence[RemoteFile]) -> set[str]:
    """Names of those that are no archives."""
    return {file.name for file in files if not file.archive}
