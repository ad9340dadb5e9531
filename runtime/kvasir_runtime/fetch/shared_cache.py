"""A cache of models that this process only reads: another one fetches, and leaves a record for each name of a model.

Called by `source` where KVASIR_MODEL_CACHE_READ_ONLY names the directory, and by `kvasir pull --record`, which writes
there. A record says where the files are once all are there and compared with their checksums.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from kvasir_api import names
from kvasir_runtime.fetch import cache_limit
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


class Recorder:
    """Writes the record of one model. root: the cache. name: as processes that only read it are given."""

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._place, self._last = root, _place(root, name), Record()

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """A disk without room for that is reported by the download."""
        with suppress(OSError):
            self._write(Record(done_bytes=done_bytes, total_bytes=total_bytes))

    def whole(self, path: Path) -> None:
        """All files are there. path: what was fetched, in the cache. Raises OSError, ValueError for one outside."""
        within = str(path.absolute().relative_to(self._root.absolute()))
        self._write(msgspec.structs.replace(self._last, path=within))

    def _write(self, record: Record) -> None:
        self._last = record
        self._place.parent.mkdir(exist_ok=True)
        new = self._place.with_name(f"{self._place.name}.{os.getpid()}.tmp")
        new.write_bytes(msgspec.json.encode(record))
        new.replace(self._place)


def read_only(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The cache that this process only reads, None where it fetches by itself."""
    given = environment.get(names.ENV_MODEL_CACHE_READ_ONLY)
    return Path(given) if given else None


def awaited(root: Path, name: str, on_bytes: OnBytes | None, sleep: Callable[[float], None] = time.sleep) -> Path:
    """The folder or file of a model that another process fetches, once it is whole; none removes it from then on.

    on_bytes: called with what that process has written, each time it changes.
    """
    last = Record()
    while True:
        record = _read(root, name)
        if record is not None and record.path and (found := _held(root, record.path)) is not None:
            return found
        if record is not None and record != last and on_bytes is not None and record.total_bytes:
            on_bytes(min(record.done_bytes, record.total_bytes), record.total_bytes)
        last = record or last
        sleep(_LOOK_S)


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


def _place(root: Path, name: str) -> Path:
    return root / _RECORDS / f"{hashlib.sha256(name.encode()).hexdigest()}.json"
