"""Progress for a person: one line that rewrites itself on a terminal, plain lines now and then elsewhere.

Handed to whoever waits for something. It decides nothing about what is waited for.
"""

import sys
import time
from typing import Final, Protocol, TextIO

_PLAIN_INTERVAL_S: Final = 15.0


class Say(Protocol):
    """Tells a person what is going on."""

    def done(self, text: str) -> None:
        """A finished step: stays on the screen."""

    def waiting(self, text: str) -> None:
        """What is being waited for; called as often as the waiter likes."""


class Quiet:
    """Tells nobody."""

    def done(self, text: str) -> None:
        pass

    def waiting(self, text: str) -> None:
        pass


class Terminal:
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
