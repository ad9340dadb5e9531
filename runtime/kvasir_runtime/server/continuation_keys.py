"""The keys that sign continuation tokens, from a file or a mounted Secret that may change.

Replicas of a service have the same. The first signs, all verify: a new key is added behind the first, and moved before
it when each replica has read it.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

RELOAD_S: Final = 1.0
MAX_BYTES: Final = 65_536
MIN_CHARACTERS: Final = 16
"""Of a key: less could be guessed."""

log = logging.getLogger("kvasir.keys")


class ContinuationKeys:
    """path: of a file or of a directory of files, empty for none. clock: monotonic seconds."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._keys: tuple[bytes, ...] = ()
        self._read_at = float("-inf")

    def current(self) -> tuple[bytes, ...]:
        """The keys as they were a second ago at most, none without a path. What cannot be read changes nothing."""
        if self._path and self._clock() >= self._read_at + RELOAD_S:
            self._read_at = self._clock()
            try:
                self._keys = read(self._path)
            except (OSError, ValueError) as error:
                log.warning("continuation keys cannot be read, the previous ones stay valid: %s", error)
        return self._keys


def read(path: str) -> tuple[bytes, ...]:
    """Keys of 32 bytes, one for each line of the files in order of their names. Raises OSError, and ValueError for a
    line that is too short."""
    where = Path(path)
    # A mounted Secret has its files behind links in names that begin with two dots.
    files = sorted(file for file in where.iterdir() if file.name[:1] != ".") if where.is_dir() else [where]
    lines = [line.strip() for file in files for line in file.read_bytes()[:MAX_BYTES].splitlines() if line.strip()]
    if any(len(line) < MIN_CHARACTERS for line in lines):
        raise ValueError(f"a key in {path} has fewer than {MIN_CHARACTERS} characters")
    return tuple(hashlib.sha256(line).digest() for line in lines)
