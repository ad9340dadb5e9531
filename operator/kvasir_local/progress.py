"""Progress on a terminal as one line that rewrites itself; elsewhere plain lines now and then.

Passed to every function that waits. It decides nothing about what is awaited.
"""

import sys
import time
from typing import Final, Protocol, TextIO

_PLAIN_INTERVAL_S: Final = 15.0


class Progress(Protocol):
    """Reports progress to a person."""

    def done(self, text: str) -> None:
        """A finished step; the line stays on the screen."""

    def waiting(self, text: str) -> None:
        """What is awaited; may be called often."""


class SilentProgress:
    """Reports nothing."""

    def done(self, text: str) -> None:
        pass

    def waiting(self, text: str) -> None:
        pass


class TerminalProgress:
    """Writes to a stream; rewrites the waiting line when that is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._last = ""
        self._last_at = 0.0

    def done(self, text: str) -> None:
        self._stream.write(f"\r\x1b[2K{text}\n" if self._live else f"{text}\n")
        self._stream.flush()
        self._last = ""

    def waiting(self, text: str) -> None:
        now = time.monotonic()
        if self._live:
            if now - self._last_at < 0.1:
                return
            self._stream.write(f"\r\x1b[2K{text}")
        else:
            subject = text.split("…", maxsplit=1)[0]
            if subject == self._last and now - self._last_at < _PLAIN_INTERVAL_S:
                return
            self._last = subject
            self._stream.write(f"{text}\n")
        self._last_at = now
        self._stream.flush()
