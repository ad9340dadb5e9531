"""The keys that sign continuation tokens, from a file or a mounted Secret that may change.

Replicas of a service have the same. The first signs, all verify: a new key is added behind the first, and moved before
it when each replica has read it. The process loads them again and again, in a thread.
"""

import hashlib
import logging
from typing import Final

from kvasir_runtime.server.auth import key_files

RELOAD_S: Final = 1.0
MAX_BYTES: Final = 65_536
MIN_CHARACTERS: Final = 16
"""Of a key: less could be guessed."""

log = logging.getLogger("kvasir.keys")


class ContinuationKeys:
    """path: of a file or of a directory of files, empty for none. current: the keys as they were read last."""

    def __init__(self, path: str) -> None:
        self.current: tuple[bytes, ...] = ()
        self._path, self._trouble = path, ""

    def load(self) -> None:
        """Read the path. What cannot be read changes nothing, and is logged once in a row."""
        trouble = ""
        try:
            self.current = read(self._path) if self._path else ()
        except (OSError, ValueError) as error:
            trouble = str(error)
            if trouble != self._trouble:
                log.warning("continuation keys cannot be read, the previous ones stay valid: %s", trouble)
        self._trouble = trouble


def read(path: str) -> tuple[bytes, ...]:
    """Keys of 32 bytes, one for each line of the files in order of their names. Raises OSError, and ValueError for a
    line that is too short."""
    contents = [file.read_bytes()[:MAX_BYTES] for file in key_files(path)]
    lines = [line.strip() for content in contents for line in content.splitlines() if line.strip()]
    if any(len(line) < MIN_CHARACTERS for line in lines):
        raise ValueError(f"a key in {path} has fewer than {MIN_CHARACTERS} characters")
    return tuple(hashlib.sha256(line).digest() for line in lines)
