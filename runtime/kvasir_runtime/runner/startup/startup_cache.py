"""The startup cache: what a start measured, so that the next one with the same model, options and machine need not.

Called by `build`. An entry is a small JSON document in a file named after the hash of its key, written atomically and
readable by its owner only. The document contains the key too, which must match exactly; any other file is left alone
and logged in one line. An entry only says how much memory steps take; how much there is, is read at each start.
"""

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from kvasir_api import names

LOG = logging.getLogger(__name__)
OFF: Final = "off"
SUFFIX: Final = ".startup.json"
VERSION: Final = 1
MAX_ENTRIES: Final = 64
"""In one directory; the oldest are removed first. A machine rarely serves more models and settings in turn."""
MAX_FILE_BYTES: Final = 65_536
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]

CacheKey = Mapping[str, str]
"""Everything that the measurements depend on, by name."""


class StepMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """peak_bytes: what the largest step takes for a moment. graph_bytes: what recorded steps hold for good.

    num_blocks: of the KV cache of that start; only for readers of the file.
    """

    peak_bytes: _Bytes
    graph_bytes: _Bytes = 0
    num_blocks: _Bytes = 0


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    key: dict[str, str]
    measured: StepMemory


def directory(option: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where entries are stored: the option, else the variable, else below the user's cache; None where it is off."""
    if (option or environment.get(names.ENV_STARTUP_CACHE, "")) == OFF:
        return None
    if (found := chosen(option, environment)) is not None:
        return found
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    return Path(cache) / "kvasir" / "start" if cache.startswith("/") else None


def chosen(option: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The directory that the option or the variable names; None where neither does, or it is off."""
    found = option or environment.get(names.ENV_STARTUP_CACHE, "")
    if found in {"", OFF}:
        return None
    return Path(os.path.expanduser(found))  # noqa: PTH111 -- Path's own raises where the user is unknown


class StartupCache:
    """The entries of one directory, which need not exist. No failure here stops an engine from starting."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def find(self, key: CacheKey) -> StepMemory | None:
        """What an earlier start measured under the same key."""
        if self._folder is None:
            return None
        path = self._folder / _name(key)
        try:
            document = msgspec.json.decode(_read(path), type=_Document)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            LOG.warning("startup cache entry %s is ignored: %s", path, reason(error))
            return None
        if document.version != VERSION or document.key != dict(key):
            LOG.warning("startup cache entry %s is ignored: its key is another one", path)
            return None
        return document.measured

    def store(self, key: CacheKey, measured: StepMemory) -> None:
        """Store an entry for the next start; a directory that cannot be written is logged in one line."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_ownership(self._folder.lstat(), "directory")
            _write(self._folder, self._folder / _name(key), key, measured)
            self._remove_oldest()
        except OSError as error:
            LOG.warning("the startup cache entry is not kept in %s: %s", self._folder, reason(error))

    def drop(self, key: CacheKey) -> None:
        """Remove an entry that turned out wrong."""
        if self._folder is not None:
            (self._folder / _name(key)).unlink(missing_ok=True)

    def _remove_oldest(self) -> None:
        assert self._folder is not None
        found = [(path.lstat().st_mtime_ns, path) for path in self._folder.glob(f"*{SUFFIX}")]
        for _, path in sorted(found, reverse=True)[MAX_ENTRIES:]:
            path.unlink(missing_ok=True)


def _name(key: CacheKey) -> str:
    return hashlib.sha256(msgspec.json.encode(dict(key), order="sorted")).hexdigest()[:32] + SUFFIX


def _read(path: Path) -> bytes:
    """The content of a small regular file that this user owns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE_BYTES:
            raise OSError("not a small file")
        require_ownership(found, "file")
        return stream.read(MAX_FILE_BYTES)


def require_ownership(found: os.stat_result, what: str) -> None:
    """Reject files of other users, whose numbers could make this process take all memory. Raises OSError."""
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise OSError(f"the {what} belongs to another user, or others may write it")


def _write(folder: Path, path: Path, key: CacheKey, measured: StepMemory) -> None:
    """Write a temporary file, which is 0600 from the beginning, and rename it."""
    document = _Document(version=VERSION, key=dict(key), measured=measured)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".startup-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def reason(error: Exception) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())
