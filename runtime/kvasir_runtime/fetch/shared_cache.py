"""A cache of models that this process only reads: another one fetches, and leaves a record for each name of a model.

Called by `source` where KVASIR_MODEL_CACHE_READ_ONLY names the directory, and by `kvasir pull --record`, which writes
there. A record says where the files are once all are there and compared with their checksums. Beside it lies, while
shards of a checkpoint still come, which these are, so that processes that read can load those that are there.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from kvasir_api import names
from kvasir_runtime.arriving import Shards
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import cache_limit
from kvasir_runtime.fetch.arrival import LATE, Arrival, is_shard
from kvasir_runtime.fetch.model_files import is_inside
from kvasir_runtime.fetch.progress import OnBytes

_RECORDS: Final = ".records"
"""No model's name begins with a dot, so that a limit of the cache removes none."""
_LOOK_S: Final = 0.5


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """path: of the folder, or of the first GGUF file, in the cache; empty until all is there. bytes: see OnBytes."""

    path: str = ""
    done_bytes: int = 0
    total_bytes: int = 0


class ExpectedShards(msgspec.Struct, frozen=True, kw_only=True):
    """path: of the folder, in the cache, in which all but these shards is there, and each of them once it is whole."""

    path: str
    shards: Shards


class LateFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of archives what was unpacked when a start could load already, see `Arrival.grown`. It lies with the model, since
    it is of the process that has unpacked it."""

    names: list[str] = []
    is_void: bool = True


class Recorder:
    """Writes the record of one model. root: the cache. name: as processes that only read it are given."""

    def __init__(self, root: Path, name: str) -> None:
        """A download begins: what an earlier one expected counts no more."""
        self._root, self._place, self._last = root, _place(root, name), Record()
        self._expected: ExpectedShards | None = None
        self._is_withdrawn = False
        with suppress(OSError):
            _expected_place(self._place).unlink(missing_ok=True)

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """A disk without room for that is reported by the download."""
        with suppress(OSError):
            self._write(Record(done_bytes=done_bytes, total_bytes=total_bytes))
            if self._expected is not None and not self._is_withdrawn and not _expected_place(self._place).exists():
                self._write_expected(self._expected)  # another pod has begun to fetch the model, and waits for this one

    def expect(self, folder: Path, shards: Shards) -> None:
        """These shards are to come, see `Arrival.expect`. A cache that does not take it has readers wait for all."""
        with suppress(OSError, ValueError):
            self._expected = ExpectedShards(path=self._within(folder), shards=shards)
            self._write_expected(self._expected)

    def grown(self, names: Sequence[str], *, is_void: bool) -> None:
        """See `Arrival.grown`. Without it, as on a full disk, what readers have loaded does not count."""
        if self._expected is None:
            return
        with suppress(OSError):
            _replace(
                _late_place(self._root, self._expected.path),
                msgspec.json.encode(LateFiles(names=[*names], is_void=is_void)),
            )

    def withdrawn(self) -> None:
        """See `Arrival.withdrawn`."""
        self._is_withdrawn = True
        with suppress(OSError):
            _expected_place(self._place).unlink(missing_ok=True)

    def whole(self, path: Path) -> None:
        """All files are there. path: what was fetched, in the cache. Raises OSError, ValueError for one outside."""
        self._write(msgspec.structs.replace(self._last, path=self._within(path)))
        _expected_place(self._place).unlink(missing_ok=True)

    def _write_expected(self, expected: ExpectedShards) -> None:
        _replace(_expected_place(self._place), msgspec.msgpack.encode(expected))

    def _within(self, path: Path) -> str:
        return str(path.absolute().relative_to(self._root.absolute()))

    def _write(self, record: Record) -> None:
        self._last = record
        _replace(self._place, msgspec.json.encode(record))


class RecordedArrival(Arrival):
    """Of a process that fetches for others, which load while shards come."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(lambda _: None)
        self._recorder = recorder

    def expect(self, folder: Path, shards: Shards) -> None:
        """See Recorder."""
        self._recorder.expect(folder, shards)

    def grown(self, names: Sequence[str], *, is_void: bool) -> None:
        """See Recorder."""
        self._recorder.grown(names, is_void=is_void)

    def withdrawn(self) -> None:
        """See Recorder."""
        self._recorder.withdrawn()


def read_only(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The cache that this process only reads, None where it fetches by itself."""
    given = environment.get(names.ENV_MODEL_CACHE_READ_ONLY)
    return Path(given) if given else None


def awaited(
    root: Path,
    name: str,
    on_bytes: OnBytes | None,
    sleep: Callable[[float], None] = time.sleep,
    arrival: Arrival | None = None,
) -> Path:
    """The folder or file of a model that another process fetches, once it is whole; none removes it from then on.

    on_bytes: called with what that process has written, each time it changes; with all of them once it has compared
    them, and not before. arrival: of a start that goes on while shards come. Raises ModelUnavailableError where such a
    start ends, or another folder is whole than that which it loads from.
    """
    last, watch = Record(), None if arrival is None else _ShardWatch(root, name, arrival)
    while True:
        record = _read(root, name)
        if record is not None and record.path and (found := _held(root, record.path)) is not None:
            if watch is not None:
                watch.ended(found)
            if on_bytes is not None and last.total_bytes:
                on_bytes(last.total_bytes, last.total_bytes)
            return found
        if record is not None and record != last and on_bytes is not None and record.total_bytes:
            on_bytes(min(record.done_bytes, record.total_bytes - 1), record.total_bytes)
        last = record or last
        if watch is not None:
            watch.look(may_begin=last.total_bytes > 0)
        sleep(_LOOK_S)


class _ShardWatch:
    """Reports to a start which shards of a folder have come that another process fills."""

    def __init__(self, root: Path, name: str, arrival: Arrival) -> None:
        self._root, self._name, self._arrival = root, name, arrival
        self._folder: Path | None = None
        self._shards = Shards(headers={}, sizes={})
        self._missing = set[str]()
        self._may_begin = arrival.loads_meanwhile

    def look(self, *, may_begin: bool) -> None:
        """Begin as soon as it is known which are to come; then report those that are there. Raises as Arrival.check.

        may_begin: whether bytes were reported, by which the operator knows that a start that loads still waits.
        """
        self._arrival.check()
        if self._folder is None and may_begin and self._may_begin:
            self._begin()
        if self._folder is not None:
            self._report(self._folder)

    def _report(self, folder: Path) -> None:
        for shard in sorted(self._missing):
            try:
                self._arrival.comes(shard)
                if (folder / shard).exists() and not self._shards.grows_in_place(shard):
                    self._arrival.arrived(shard)
                    self._missing.discard(shard)
            except OSError as error:
                raise ModelUnavailableError(
                    f"{shard} of model {self._name} cannot be loaded while others are fetched: {error}"
                ) from error

    def ended(self, whole: Path) -> None:
        """All of the model is there. Raises ModelUnavailableError where a start loads from another folder, which of
        what comes in an archive is known only then."""
        if self._folder is None:
            return
        self.look(may_begin=False)
        if all(map(self._shards.grows_in_place, self._shards.headers)):
            late = _late(self._root, self._folder)
            self._arrival.grown(
                [name for name in late.names if is_inside(name) and "/" not in name], is_void=late.is_void
            )
            if whole != self._folder:
                self._arrival.moved(whole)
            for shard in sorted(self._missing):
                self._arrival.arrived(shard)
        elif self._missing or whole != self._folder / self._shards.first:
            raise ModelUnavailableError(
                f"model {self._name} has become another one while it was fetched and loaded; start again"
            )

    def _begin(self) -> None:
        expected = _expected(self._root, self._name)
        if expected is None or (folder := _held(self._root, expected.path)) is None:
            return
        try:
            self._arrival.expect(folder, expected.shards)
        except OSError:  # it is loaded when all is there; each try would hold the folder once more
            self._may_begin = False
        else:
            self._folder, self._shards, self._missing = folder, expected.shards, {*expected.shards.sizes}


def _expected(root: Path, name: str) -> ExpectedShards | None:
    """What a download expects, if these are shards by their names."""
    try:
        found = msgspec.msgpack.decode(_expected_place(_place(root, name)).read_bytes(), type=ExpectedShards)
    except (OSError, msgspec.DecodeError):
        return None
    shards, folder, inside = found.shards, root / found.path, root.resolve()
    are_shards = shards.headers.keys() == shards.sizes.keys() and all(
        map(is_shard, (*shards.sizes, *filter(None, [shards.first])))
    )
    are_inside = all((folder / partial).resolve().is_relative_to(inside) for partial in shards.partials.values())
    has_rest = bool(shards.first) or (folder / "config.json").is_file()
    has_rest = has_rest and all((folder / name).exists() for name in shards.rest or ())
    return found if are_shards and are_inside and has_rest else None


def _held(root: Path, within: str) -> Path | None:
    """A path of the cache if it is there; until this process ends its entry is not removed, see `cache_limit`."""
    if not is_inside(within):
        return None
    path = root / within
    with cache_limit.read(root / Path(within).parts[0]) as keep:
        if path.exists():
            keep()
            return path
    return None


def _read(root: Path, name: str) -> Record | None:
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_place(root, name).read_bytes(), type=Record)
    return None


def _late(root: Path, folder: Path) -> LateFiles:
    """Of a model that is whole; void where that is not known."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_late_place(root, folder.relative_to(root)).read_bytes(), type=LateFiles)
    return LateFiles()


def _late_place(root: Path, within: Path | str) -> Path:
    return root / Path(within).parts[0] / LATE


def _expected_place(record: Path) -> Path:
    return record.with_suffix(".shards")


def _replace(place: Path, content: bytes) -> None:
    place.parent.mkdir(exist_ok=True)
    # In pods all that write have the same process id, and two services may fetch one model on a node.
    new = place.with_name(f"{place.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    try:
        new.write_bytes(content)
        new.replace(place)
    except OSError:
        new.unlink(missing_ok=True)  # on a disk that is full, of which the model needs the rest
        raise


def _place(root: Path, name: str) -> Path:
    return root / _RECORDS / f"{hashlib.sha256(name.encode()).hexdigest()}.json"
