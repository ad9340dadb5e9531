"""A limit for a folder of models that the pods of a node share: the model that was used least recently gives way.

An entry is a directory of the folder: one version of a model, or a repository in the hub's cache. Processes that use
one hold a lock of a file in it, which the system frees when they end. Without KVASIR_MODEL_CACHE_BYTES nothing is held.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kvasir_api import names
from kvasir_api.forecast import readable
from kvasir_runtime.errors import ModelUnavailableError

_USED: Final = ".used"
"""Its time of change is that of the last use."""
_REMOVED: Final = ".removed"
"""What the name of an entry ends with that is being removed; it begins with a dot."""


def hold(entry: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Mark an entry as used now; until this process ends no other one removes it. It need not be there.

    Raises ModelUnavailableError for a cache that cannot be written.
    """
    while _limit(environment):
        try:
            entry.mkdir(parents=True, exist_ok=True)
            if _is_held(entry / _USED):
                return
        except FileNotFoundError:
            continue  # it was removed at this moment
        except OSError as error:
            raise ModelUnavailableError(
                f"the cache {entry.parent} cannot be written, it has to belong to user {os.getuid()}: {error}"
            ) from error


@contextmanager
def read(entry: Path) -> Iterator[Callable[[], None]]:
    """While no process removes an entry of a cache that this one may not write; until it ends, if `keep` is called.

    It need not be there, and one that was never counted is held by no lock.
    """
    kept = False

    def keep() -> None:
        nonlocal kept
        kept = True

    try:
        file = os.open(entry / _USED, os.O_RDONLY)
    except OSError:
        yield keep
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield keep
    finally:
        if not kept:
            os.close(file)


def make_room(entry: Path, rest_bytes: int, environment: Mapping[str, str] = os.environ) -> None:
    """Remove entries beside one that is held until its missing bytes fit the limit, those in use excepted.

    Raises ModelUnavailableError where they cannot. Two downloads at once may pass the limit by the smaller one.
    """
    limit = _limit(environment)
    if not limit or rest_bytes <= 0:
        return
    for path in entry.parent.glob(f".*{_REMOVED}"):
        shutil.rmtree(path, ignore_errors=True)  # its process died, or is about to end the same
    entries = [path for path in entry.parent.iterdir() if path.is_dir() and path.name[0] != "."]
    sizes = {path: size(path) for path in entries}
    over = sum(sizes.values()) + rest_bytes - limit
    for path in sorted(set(entries) - {entry}, key=_last_use):
        if over <= 0:
            return
        if _removed(path):
            over -= sizes[path]
    if over > 0:
        in_use = sum(sizes[path] for path in entries if path.exists())
        raise ModelUnavailableError(
            f"the model takes {readable(rest_bytes)} more of the node's cache, which holds at most {readable(limit)},"
            f" of which {readable(in_use)} are in use; raise --model-cache-bytes of the operator or use another node"
        )


def size(entry: Path) -> int:
    """Bytes of the files below a directory."""
    total = 0
    for path in entry.rglob("*"):
        with suppress(OSError):
            if not path.is_symlink() and path.is_file():
                total += path.stat().st_size
    return total


def _is_held(mark: Path) -> bool:
    """Take the lock for the rest of this process. False where the file was removed before."""
    file = os.open(mark, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(file, fcntl.LOCK_SH)
    os.utime(file)
    with suppress(FileNotFoundError):
        if os.fstat(file).st_ino == mark.stat().st_ino:
            return True  # the descriptor stays open, and with it the lock
    os.close(file)
    return False


def _limit(environment: Mapping[str, str]) -> int:
    return int(environment.get(names.ENV_MODEL_CACHE_BYTES) or 0)


def _last_use(entry: Path) -> float:
    with suppress(OSError):
        return (entry / _USED).stat().st_mtime
    return 0.0


def _removed(entry: Path) -> bool:
    """Whether an entry is gone: at once, so that no process finds a part of it. One that a process holds stays."""
    aside = entry.with_name(f".{uuid.uuid4().hex}{_REMOVED}")
    with suppress(OSError), (entry / _USED).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        entry.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return True
    return False
