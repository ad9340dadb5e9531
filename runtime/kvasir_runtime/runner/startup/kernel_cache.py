"""Where Triton keeps the kernels that it compiles: beside what starts have measured, so that they survive a pod.

Called by `build` before anything is compiled, and before other ranks start, which inherit the variable. Triton's own
key has a kernel's source, its types, the architecture and its own version; here each card, driver and set of versions
has a directory, so that what belongs to none that is used any more can leave.
"""

import logging
import os
import shutil
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from kvasir_runtime.runner.startup import startup_cache

LOG: Final = logging.getLogger(__name__)

VARIABLE: Final = "TRITON_CACHE_DIR"
FOLDER: Final = "kernels"
LEAST_FREE_BYTES: Final = 1 << 30
"""A compiler that finds no room ends the engine. All kernels of a model take some ten megabytes."""
UNUSED_S: Final = 30 * 86400.0


def use(
    option: str,
    key: str,
    environment: MutableMapping[str, str] = os.environ,
    *,
    least_free_bytes: int = LEAST_FREE_BYTES,
) -> None:
    """Set the variable by which Triton finds its cache, if the option or its variable names a startup cache.

    option: --startup-cache; key: `startup_cache_key.compiler`, empty on a processor. A place that cannot be written,
    that others may write, or that has no room is logged in one line: kernels are kept at home then, as without it. What
    was not used for a month is removed.
    """
    parent = startup_cache.chosen(option, environment)
    if not key or parent is None or environment.get(VARIABLE):
        return
    try:
        environment[VARIABLE] = str(_prepared(parent, key, least_free_bytes))
    except OSError as error:
        LOG.warning("compiled kernels are not kept in %s: %s", parent / FOLDER, startup_cache.reason(error))


def _prepared(parent: Path, key: str, least_free_bytes: int) -> Path:
    """The directory of a key, which exists, belongs to this user alone and has just been used. Raises OSError."""
    folder = parent / FOLDER / key
    for path in (parent, folder.parent, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        startup_cache.require_ownership(path.lstat(), "directory")
    if (free := shutil.disk_usage(folder).free) < least_free_bytes:
        raise OSError(f"{free >> 20} MiB are free, {least_free_bytes >> 20} MiB are needed")
    os.utime(folder)  # also where it is read-only: an error
    for other in folder.parent.iterdir():
        if other.lstat().st_mtime < time.time() - UNUSED_S:
            shutil.rmtree(other, ignore_errors=True)
    return folder
