"""Keys in a file, or in the files of a directory as a mounted Secret is, which may change while the process runs.

The process loads them again and again, in a thread.
"""

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from kvasir_runtime.server.auth import key_files

RELOAD_S: Final = 1.0
MAX_BYTES: Final = 65_536

log = logging.getLogger("kvasir.keys")

Keys = TypeVar("Keys")


class KeyFile(Generic[Keys]):
    """path: of a file or of a directory of files, empty for none. parse: what lines mean; raises ValueError. none: what
    there is before the first load. current: the keys as they were read last.
    """

    def __init__(self, path: str, parse: Callable[[list[bytes]], Keys], none: Keys) -> None:
        self.current = none
        self._path, self._parse, self._trouble = path, parse, ""

    @property
    def watched(self) -> bool:
        """Whether there is a path to load again."""
        return bool(self._path)

    def load(self) -> None:
        """Read the path. What cannot be read changes nothing, and is logged once in a row."""
        trouble = ""
        try:
            if self._path:
                self.current = self._parse(_lines(self._path))
        except (OSError, ValueError) as error:
            trouble = str(error)
            if trouble != self._trouble:
                log.warning("keys in %s cannot be read, the previous ones stay valid: %s", self._path, trouble)
        self._trouble = trouble


def _lines(path: str) -> list[bytes]:
    """Lines that are not empty, of the files in order of their names. Raises OSError."""
    contents = [file.read_bytes()[:MAX_BYTES] for file in key_files(path)]
    return [line.strip() for content in contents for line in content.splitlines() if line.strip()]
