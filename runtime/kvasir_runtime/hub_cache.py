"""A model's files in huggingface_hub's cache: bytes that are there, damaged ones, and what dead processes left.

Called by `hub`. Processes on several nodes may share a cache: what changes a blob takes the library's lock of it.
"""

import hashlib
import os
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from errno import ENOSYS, EOPNOTSUPP, EPERM
from pathlib import Path
from typing import Final

from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import cache_limit
from kvasir_runtime.fetch.arrival import Arrival, has_weights
from kvasir_runtime.fetch.file_transfer import FileTransfer, check_space, not_stored
from kvasir_runtime.fetch.model_files import PATTERNS, Checksum, RemoteFile, is_inside

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_STILL_S: Final = 3.0
"""What is not written for so long while its lock is free is of a process that died."""
_LOCK_S: Final = 0.2
_READ_BYTES: Final = 1 << 20
_CHECKED: Final = ".checked"
"""Folder beside a repository's blobs with an empty file for each digest that was computed, and a list of files for
each commit that has come."""
_UNFINISHED: Final = "*.incomplete"
_OURS: Final = ".incomplete"
"""Behind a blob's name: not of the form that is removed, since it is gone on with."""
_FILES_AT_ONCE: Final = 8
_NO_LINKS: Final = (EPERM, ENOSYS, EOPNOTSUPP)
_LEFT: Final = "*.*.incomplete"
"""The library since version 2 writes BLOB.RANDOM.incomplete and never goes on with it; before, BLOB.incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """name: path in the repository. digest: the sha256 of a large file, the Git object of a small one; hexadecimal."""

    name: str
    size: int
    digest: str

    def checksum(self) -> Checksum:
        """What its bytes are compared with."""
        return Checksum(algorithm="sha256" if len(self.digest) == 64 else "git", value=self.digest, size=self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubListing:
    """What a hub has under a name now: the commit, and the files that are fetched of it."""

    commit: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class HubCache:
    """What of a listing is in the cache."""

    def __init__(
        self,
        root: Path,
        repository: str,
        found: HubListing,
        sleep: Callable[[float], None] = time.sleep,
        arrival: Arrival | None = None,
    ) -> None:
        """root: HF_HUB_CACHE. repository: its name on the hub."""
        self._root, self._name, self._found = root, repository, found
        self._repository = repository_folder(root, repository)
        self._locks = root / ".locks" / self._repository.name
        self._snapshot = self._repository / "snapshots" / found.commit
        self._transfer = FileTransfer(repository, sleep, arrival)
        self._arrival = arrival

    def remove_leftovers(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Remove unfinished files of processes that died. A free lock alone is no proof: some network file systems
        grant it to every process, so files that still grow stay too."""
        with ExitStack() as locks:
            free = [
                path
                for digest, paths in self._unfinished(_LEFT).items()
                if self._is_locked(locks, digest, _LOCK_S)
                for path in paths
            ]
            before = {path: _written(path) for path in free}
            if free:
                sleep(_STILL_S)
            for path in free:
                if _written(path) == before[path]:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)

    def make_room(self) -> None:
        """In a cache with a limit, for what is missing. The repository is held. Raises ModelUnavailableError."""
        cache_limit.make_room(self._repository, self._found.size - self.held())

    def held(self) -> int:
        """Bytes that are there, those of unfinished files included: of each blob the one that was written last."""
        whole = sum(file.size for file in self._found.files if self._has(file))
        unfinished = (
            max(map(_written, paths))[1]
            for digest, paths in self._unfinished(_UNFINISHED).items()
            if not (self._blobs / digest).exists()
        )
        return min(self._found.size, whole + sum(unfinished))

    def check_space(self) -> None:
        """Raises ModelUnavailableError where the disk has less room than the rest of the files takes."""
        check_space(self._name, self._root, self._found.size - self.held())

    def fetch(self, files: Sequence[RemoteFile]) -> None:
        """Those of the listing that are not there, weights last. What a process before has begun is gone on with.

        Raises ModelUnavailableError.
        """
        digests = {file.name: file.digest for file in self._found.files}
        first = [file for file in files if not has_weights(file.name)]
        weights = [file for file in files if has_weights(file.name)]
        rest = sorted((file for file in weights if not self.path(file.name).exists()), key=lambda file: file.name)

        def fetch(file: RemoteFile) -> None:
            self._fetch(file, digests[file.name])

        try:
            with ThreadPoolExecutor(max_workers=_FILES_AT_ONCE) as threads:
                list(threads.map(fetch, first))
                if self._arrival is not None and rest:
                    self._snapshot.mkdir(parents=True, exist_ok=True)
                    self._arrival.begun(
                        self._snapshot, digests, rest, lambda file: self._unfinished_of(digests[file.name])
                    )
                list(threads.map(fetch, rest))
        except OSError as error:
            raise not_stored(self._name, error) from error

    def path(self, name: str = "") -> Path:
        """Where a file lies, or all of them."""
        return self._snapshot / name

    def _fetch(self, file: RemoteFile, digest: str) -> None:
        blob, place = self._blobs / digest, self._snapshot / file.name
        with ExitStack() as held:
            self._blobs.mkdir(parents=True, exist_ok=True)
            self._is_locked(held, digest)
            if not (self._repository / _CHECKED / digest).exists() or not blob.exists():
                unfinished = self._unfinished_of(digest)
                self._transfer.receive(file, unfinished)
                unfinished.replace(blob)
                _touch(self._repository / _CHECKED / digest)
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(place, blob)
        if self._arrival is not None:
            self._arrival.arrived(file.name)

    def remove_damaged(self) -> list[str]:
        """Compute each file's digest once, and remove files with another one than the hub states.

        Returns those and the ones that are not there. Raises ModelUnavailableError where one cannot be read or removed.
        """
        files = self._found.files
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
            is_whole = list(threads.map(self._is_whole, files))
        return [file.name for file, whole in zip(files, is_whole, strict=True) if not whole]

    def remember(self, revision: str, file: str = "") -> None:
        """All files are there: keep their names, sizes and digests, and let a branch or tag stand for the commit where
        the hub is not reached. A cache that is only read stays. file: of a repository of which one GGUF model is
        fetched.
        """
        listed = "".join(f"{one.digest} {one.size} {one.name}\n" for one in self._found.files)
        _write(_list(self._repository, self._found.commit, file), listed)
        if revision != self._found.commit and is_inside(revision):
            _write(self._repository / "refs" / revision, self._found.commit)

    @property
    def _blobs(self) -> Path:
        return self._repository / "blobs"

    def _has(self, file: HubFile) -> bool:
        return (self._snapshot / file.name).exists() or (self._blobs / file.digest).exists()

    def _unfinished_of(self, digest: str) -> Path:
        """Where the bytes of a blob come."""
        return self._blobs / f"{digest}{_OURS}"

    def _unfinished(self, pattern: str) -> Mapping[str, Iterable[Path]]:
        """Unfinished files by their blob."""
        found = defaultdict(list)
        for path in self._blobs.glob(pattern):
            found[path.name.partition(".")[0]].append(path)
        return found

    def _is_locked(self, held: ExitStack, digest: str, timeout_s: float | None = None) -> bool:
        """Take the lock of a blob, and keep it until `held` ends. False for one that others have and for a cache that
        is only read."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # it is exported lazily

        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            held.enter_context(WeakFileLock(self._locks / f"{digest}.lock", timeout=timeout_s))
        except OSError:  # the lock's own timeout is one, too
            return False
        return True

    def _is_whole(self, file: HubFile) -> bool:
        """Whether a file is there with its digest; removes it if it has another one."""
        path, mark = self._snapshot / file.name, self._repository / _CHECKED / file.digest
        try:
            if mark.exists():
                return path.exists()
            with ExitStack() as held:
                self._is_locked(held, file.digest)
                if mark.exists():
                    return path.exists()  # others computed it meanwhile
                is_whole, inode = _compared(path, file)
                if is_whole:
                    _touch(mark)
                    return True
                blob = path.resolve()
                if blob.stat().st_ino == inode:  # and not what others have fetched since
                    blob.unlink()
                    path.unlink(missing_ok=True)
                return False
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ModelUnavailableError(
                f"model {self._name} is in the cache, and its {file.name} could not be checked: {error}"
            ) from error


def repository_folder(root: Path, repository: str) -> Path:
    """Where the cache keeps a repository. root: HF_HUB_CACHE."""
    return root / f"models--{repository.replace('/', '--')}"


def checked_snapshot(root: Path, repository: str, revision: str, file: str = "") -> tuple[Path, str] | None:
    """The folder of a commit, or of the one that a branch or tag stood for last, of which all files of a listing came
    and were compared, and the first of them that is not there any more, empty where all are; None where none is known.

    root: HF_HUB_CACHE. file: of a repository of which one GGUF model is fetched.
    """
    folder = repository_folder(root, repository)
    try:
        reference = folder / "refs" / revision
        commit = reference.read_text().strip() if is_inside(revision) and reference.is_file() else revision
        listed = [line.split(" ", 2) for line in _list(folder, commit, file).read_text().splitlines()]
    except (OSError, ValueError):
        return None
    snapshot, marks = folder / "snapshots" / commit, folder / _CHECKED
    lost = (
        name
        for digest, size, name in listed
        if _written(snapshot / name)[1] != int(size) or not (marks / digest).exists()
    )
    return (snapshot, next(lost, "")) if listed else None


def is_settled(repository: str, file: str, commit: str) -> bool:
    """Whether it is known without the hub if a commit has a file: it is there, the hub said before that it is not, or
    all files of the commit came. Offline it has what the cache has, as for a start.
    """
    from huggingface_hub import constants, is_offline_mode, try_to_load_from_cache

    if is_offline_mode() or try_to_load_from_cache(repository, file, revision=commit):
        return True
    whole = checked_snapshot(Path(constants.HF_HUB_CACHE), repository, commit)
    return whole is not None and not whole[1]


def _list(repository: Path, commit: str, file: str) -> Path:
    """Where names, sizes and digests are kept of the files that came of a commit, by what was wanted of it. Raises
    ValueError for what is no commit."""
    if not COMMIT.fullmatch(commit):
        raise ValueError(f"{commit!r:.100} is no commit")
    wanted = hashlib.sha256(repr(PATTERNS).encode()).hexdigest()[:8]
    return repository / _CHECKED / f"{commit}-{wanted}-{file}.files"


def _write(path: Path, text: str) -> None:
    """At once; not where the disk is full or only read."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Pods that share a volume have the same process ids.
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as new:
            new.write(text)
        Path(new.name).replace(path)


def _written(path: Path) -> tuple[int, int]:
    """When it was written, in nanoseconds, and its bytes."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0  # just finished
    return found.st_mtime_ns, found.st_size


def _compared(path: Path, file: HubFile) -> tuple[bool, int]:
    """Whether a file has its digest, and the inode that was read."""
    digest = file.checksum().digest()
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
        return digest.matches(), os.fstat(stream.fileno()).st_ino


def _link(place: Path, blob: Path) -> None:
    """A file of a snapshot is a link to its blob, or the blob itself on a file system without links."""
    try:
        place.symlink_to(os.path.relpath(blob, place.parent))
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        blob.replace(place)


def _touch(mark: Path) -> None:
    """A mark only saves computing the digest again: none where the disk is full or only read."""
    with suppress(OSError):
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
