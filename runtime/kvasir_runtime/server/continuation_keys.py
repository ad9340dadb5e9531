"""The keys that sign continuation tokens, from a file or a mounted Secret that may change.

Replicas of a service have the same. The first signs, all verify: a new key is added behind the first, and moved before
it when each replica has read it.
"""

import hashlib
from typing import Final

from kvasir_runtime.server.key_file import KeyFile

MIN_CHARACTERS: Final = 16
"""Of a key: less could be guessed."""


class ContinuationKeys(KeyFile[tuple[bytes, ...]]):
    """Keys of 32 bytes, one for each line. path: of a file or of a directory of files, empty for none."""

    def __init__(self, path: str) -> None:
        super().__init__(path, parsed, ())


def parsed(lines: list[bytes]) -> tuple[bytes, ...]:
    """Keys of 32 bytes. Raises ValueError for a line that is too short."""
    if any(len(line) < MIN_CHARACTERS for line in lines):
        raise ValueError(f"a key has fewer than {MIN_CHARACTERS} characters")
    return tuple(hashlib.sha256(line).digest() for line in lines)
