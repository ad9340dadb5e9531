"""A checkpoint whose weights still come: a folder in which a shard is its header alone until all of it is there.

The process that fetches makes and completes it. The engine's loader checks all headers at once, and waits for a shard
where it needs the bytes. One is there only with the checksum that its source states, so that nothing is read before it
was compared. Imports no torch.
"""

import shutil
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kvasir_runtime.errors import ModelError

_MARK: Final = ".arriving"
"""A file of such a folder: the names of the shards with their bytes."""
_LOOK_S: Final = 0.05
Loaded = TypeVar("Loaded")


class Shards(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of shards that are not there, by name. headers: their beginning, length and JSON. sizes: bytes."""

    headers: dict[str, bytes]
    sizes: dict[str, int]


class ArrivingFolder:
    """Made beside a folder that is being filled; it goes with this object."""

    def __init__(self, real: Path, shards: Shards) -> None:
        """real: with all other files of the model."""
        headers = shards.headers
        self._real, self._headers = real.absolute(), headers
        self.path = Path(tempfile.mkdtemp(prefix="kvasir-arriving-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        for there in self._real.iterdir():
            if there.name not in headers:
                (self.path / there.name).symlink_to(there)
        for name, header in headers.items():
            (self.path / name).write_bytes(header)
        (self.path / _MARK).write_bytes(msgspec.json.encode(shards.sizes))

    def arrived(self, name: str) -> None:
        """A shard is whole in the real folder. Where its header was another one, `awaited` raises."""
        if (header := self._headers.get(name)) is None:
            return
        real, new = self._real / name, self.path / f".{name}.new"
        with real.open("rb") as stream:
            if stream.read(len(header)) != header:
                _note_of(self.path / name).touch()
        new.symlink_to(real)
        new.replace(self.path / name)


def size(path: Path) -> int:
    """Bytes of a file when it is there. Raises OSError."""
    return path.stat().st_size if is_here(path) else _pending(path.parent)[path.name]


def is_here(path: Path) -> bool:
    """Whether a file of a checkpoint is whole."""
    return path.is_symlink() or path.name not in _pending(path.parent)


def awaited(path: Path, sleep: Callable[[float], None] = time.sleep) -> Path:
    """The same path, when the file is whole. Raises ModelError where nothing fetches it any more, or where it does not
    begin with the header that was there before."""
    _await(path, sleep)
    if _note_of(path).exists():
        raise ModelError(f"{path.name} was sent with two different beginnings")
    return path


def all_awaited(folder: Path) -> None:
    """Return when all files of a checkpoint are there; at once for a folder that is whole, or a file."""
    for name in _pending(folder):
        _await(folder / name, time.sleep)


def loaded(folder: Path, load: Callable[[Path], Loaded]) -> Loaded:
    """What load makes of a checkpoint. Headers that were sent ahead have no checksum: where load fails with them, it is
    called once more with the real folder, when all shards are there. Raises what load raises, and ModelError."""
    try:
        return load(folder)
    except (ModelError, UnicodeDecodeError):
        if not _pending(folder):
            raise
    all_awaited(folder)
    return load(real(folder))


def real(folder: Path) -> Path:
    """The folder that is being filled; any other, or a file, as it is."""
    return (folder / "config.json").readlink().parent if _pending(folder) else folder


def _await(path: Path, sleep: Callable[[float], None]) -> None:
    if is_here(path):
        return
    while not is_here(path):
        sleep(_LOOK_S)
    if not path.exists():
        raise ModelError(f"{path.name} is not fetched any more")


def _note_of(path: Path) -> Path:
    """A file that is there where a shard begins otherwise than its header did."""
    return path.with_name(f".{path.name}.other")


def _pending(folder: Path) -> dict[str, int]:
    mark = folder / _MARK
    if not mark.is_file():  # an ordinary folder, or a file
        return {}
    return msgspec.json.decode(mark.read_bytes(), type=dict[str, int])
