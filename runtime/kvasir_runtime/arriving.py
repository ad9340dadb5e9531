"""A checkpoint whose weights still come: a folder in which a file with weights is its header alone until all of it is
there.

The process that fetches makes and completes it. The engine's loader checks all headers at once, and reads the bytes of
each file as they come. It is loaded only when every file is there with the checksum that its source states, and what
was read of it before is of that very file: one that is fetched again is another one. Imports no torch.
"""

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

from kvasir_runtime.errors import ModelError

_MARK: Final = ".arriving"
"""A file of such a folder."""
_GROWN: Final = ".grown"
"""A file of one in which there are more files now than in the beginning."""
LOOK_S: Final = 0.05
Loaded = TypeVar("Loaded")


class Shards(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of files with weights that are not there, by name. headers: their beginning, of safetensors length
    and JSON, with what a GGUF file has before its tensors. sizes: bytes. partials: where their bytes come, relative to
    the folder; it only grows, or becomes another file, in its own place where it is unpacked. rest: what else of the
    folder is there, None for all that is in it. first: the GGUF file to load, empty for a checkpoint."""

    headers: dict[str, bytes]
    sizes: dict[str, int]
    partials: dict[str, str] = {}
    rest: list[str] | None = None
    first: str = ""

    def grows_in_place(self, name: str) -> bool:
        """Whether a shard that is in the folder need not be whole."""
        return self.partials.get(name) == name


class _Mark(msgspec.Struct, frozen=True, kw_only=True):
    """real: the folder that is being filled. sizes: of files that were not there in the beginning."""

    real: str = ""
    sizes: dict[str, int] = {}


class _Partial(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shard comes, and the device and number of that file: another one may take its place."""

    path: str
    number: tuple[int, int]


class ArrivingFolder:
    """Made beside a folder that is being filled; it goes with this object."""

    def __init__(self, real: Path, shards: Shards) -> None:
        """real: with all other files of the model. Raises OSError."""
        self._real, self._shards = real.absolute(), shards
        self._folder = Path(tempfile.mkdtemp(prefix="kvasir-arriving-"))
        self._read = dict[str, BinaryIO]()
        weakref.finalize(self, _remove, self._folder, self._read)
        for there in self._real.iterdir():
            if there.name not in shards.headers and (shards.rest is None or there.name in shards.rest):
                (self._folder / there.name).symlink_to(there)
        for name, header in shards.headers.items():
            (self._folder / name).write_bytes(header)
        self._write_mark()

    @property
    def path(self) -> Path:
        """What is loaded: the folder, or a GGUF file in it."""
        return self._folder / self._shards.first

    def comes(self, name: str) -> None:
        """Bytes of a shard may be read from now on. It stays open, so that no other file has its number meanwhile."""
        if name in self._read or name not in self._shards.partials:
            return
        with suppress(OSError):  # it has not begun, or is whole
            partial = (self._real / self._shards.partials[name]).resolve()
            self._read[name] = stream = partial.open("rb")
            link = _Partial(path=str(partial), number=_number(os.fstat(stream.fileno())))
            new = self._folder / f".{name}.new"
            new.write_bytes(msgspec.json.encode(link))
            new.replace(_partial_of(self._folder / name))

    def grown(self, names: Iterable[str], *, is_void: bool) -> None:
        """Files of the real folder, or folders in it, that came since. is_void: `awaited` and `confirm` raise."""
        for name in names:
            with suppress(FileExistsError):
                (self._folder / name).symlink_to(self._real / name)
            (self._folder / _GROWN).touch()
        for name in self._shards.headers if is_void else ():
            _note_of(self._folder / name).touch()

    def moved(self, real: Path) -> None:
        """The model is in another folder than that which was shown: `awaited` and `confirm` raise."""
        self._real = real.absolute()
        self._write_mark()
        self.grown((), is_void=True)

    def arrived(self, name: str) -> None:
        """A shard is whole in the real folder. Where it is another file than that which came, or its header was another
        one, or there is none after all, `awaited` and `confirm` raise."""
        if (header := self._shards.headers.get(name)) is None:
            return
        real, new = self._real / name, self._folder / f".{name}.new"
        try:
            with real.open("rb") as stream:
                is_other = stream.read(len(header)) != header or not self._is_what_came(name, stream)
        except FileNotFoundError:
            is_other = True
        if is_other:
            _note_of(self._folder / name).touch()
        new.symlink_to(real)
        new.replace(self._folder / name)

    def _is_what_came(self, name: str, whole: BinaryIO) -> bool:
        """Whether bytes that came are of the file that is whole, or none were shown. Of one that grows in its place
        they were, unless it was removed before it was opened: then its header and the rest are of another download."""
        if (read := self._read.get(name)) is None:
            return not self._shards.grows_in_place(name)
        try:
            return os.path.sameopenfile(read.fileno(), whole.fileno())
        except OSError:  # of a network file system, on which another machine has removed it
            return False

    def _write_mark(self) -> None:
        new = self._folder / f"{_MARK}.new"
        new.write_bytes(msgspec.json.encode(_Mark(real=str(self._real), sizes=self._shards.sizes)))
        new.replace(self._folder / _MARK)


def size(path: Path) -> int:
    """Bytes of a file when it is there. Raises OSError."""
    return path.stat().st_size if is_here(path) else _mark(path.parent).sizes[path.name]


def is_here(path: Path) -> bool:
    """Whether a file of a checkpoint is whole."""
    return path.is_symlink() or path.name not in _mark(path.parent).sizes


def readable(path: Path, end: int) -> Path | None:
    """Where the first `end` bytes of a file can be read, None as long as they are not there: at its own path it is
    whole, elsewhere see `opened`. Raises ModelError where it is another file than that of which bytes came before."""
    if is_here(path):
        if _note_of(path).exists():
            raise ModelError(f"{path.name} was sent with two different beginnings, or was fetched again")
        return path
    with suppress(FileNotFoundError):  # it has not begun, or has just become whole
        comes = _partial(path)
        found = (place := Path(comes.path)).stat()
        return place if found.st_size >= end and _number(found) == comes.number else None
    return None


def opened(path: Path, end: int, sleep: Callable[[float], None] = time.sleep) -> BinaryIO:
    """A file for reading, as soon as its first `end` bytes are there. Raises OSError, ModelError as `awaited`."""
    while not is_here(path):
        with suppress(FileNotFoundError):
            if (place := readable(path, end)) not in (None, path):
                stream = place.open("rb")
                if _number(os.fstat(stream.fileno())) == _partial(path).number:
                    return stream
                stream.close()
        sleep(LOOK_S)
    return awaited(path).open("rb")


def awaited(path: Path, sleep: Callable[[float], None] = time.sleep) -> Path:
    """The same path, when the file is whole. Raises ModelError as `readable`, and where nothing fetches it any more."""
    _await(path, sleep)
    readable(path, 0)
    return path


def all_awaited(model: Path) -> None:
    """Return when all files of a checkpoint are there; at once for one that is whole. Raises ModelError where nothing
    fetches it any more."""
    folder = _folder(model)
    for name in _mark(folder).sizes:
        _await(folder / name, time.sleep)


def confirm(model: Path) -> None:
    """Return when all files of a checkpoint are there. Raises ModelError as `awaited`: then what was read is void."""
    folder = _folder(model)
    for name in _mark(folder).sizes:
        awaited(folder / name)


def is_confirmed(model: Path) -> bool:
    """Whether what was read of a checkpoint, all of which is there, is of the files that were compared, and of all."""
    try:
        confirm(model)
    except ModelError:
        return False
    return not (_folder(model) / _GROWN).exists()


def loaded(model: Path, load: Callable[[Path], Loaded]) -> Loaded:
    """What load makes of a checkpoint. What was sent ahead has no checksum: where load fails with it, it is called once
    more with the real folder, when all files are there. Raises what load raises, and ModelError."""
    try:
        return load(model)
    except (ModelError, ValueError, LookupError, msgspec.MsgspecError):
        if real(model) == model:
            raise
    all_awaited(model)
    return load(real(model))


def real(model: Path) -> Path:
    """The folder that is being filled, or a GGUF file in it; any other as it is."""
    folder = _folder(model)
    return Path(_mark(folder).real) / model.relative_to(folder) if _mark(folder).real else model


def _await(path: Path, sleep: Callable[[float], None]) -> None:
    if is_here(path):
        return
    while not is_here(path):
        sleep(LOOK_S)
    if not path.exists() and not _note_of(path).exists():
        raise ModelError(f"{path.name} is not fetched any more")


def _remove(folder: Path, opened: dict[str, BinaryIO]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for stream in opened.values():
        stream.close()


def _folder(model: Path) -> Path:
    return model if model.is_dir() else model.parent


def _note_of(path: Path) -> Path:
    """A file that is there where a shard is another one than what was read before."""
    return path.with_name(f".{path.name}.other")


def _partial_of(path: Path) -> Path:
    """A file that says where a shard comes."""
    return path.with_name(f".{path.name}.part")


def _partial(path: Path) -> _Partial:
    return msgspec.json.decode(_partial_of(path).read_bytes(), type=_Partial)


def _number(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _mark(folder: Path) -> _Mark:
    mark = folder / _MARK
    if not mark.is_file():  # an ordinary folder
        return _Mark()
    return msgspec.json.decode(mark.read_bytes(), type=_Mark)
