"""Whether the node at the other end of a control connection lives: both send a beat, and at their end the reason.

A node whose process is gone closes the connection; one that is stopped, or cut off, is silent. Silence is counted by
looks, so that time in which this process did not run counts for nothing. A beat is one byte: the looks for which the
node may be silent, more of them while it starts, when a library may keep its threads from running.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from kvasir_runtime.nodes.link import Link, LinkError

LOOK_S: Final = 0.25
MOST_SILENT_LOOKS: Final = 7
"""Together 1.75 s, so that a lost node ends the model within 2 s."""
MOST_STARTING_LOOKS: Final = 120
"""30 s, while a node loads the model."""
MOST_WORDS: Final = 4096
_WITHIN_S: Final = 1.0


class NodeHeartbeat:
    """on_end: called once, by a thread, with the reason in one line, when the other node has ended or is silent."""

    def __init__(self, link: Link, on_end: Callable[[str], None]) -> None:
        self._link, self._on_end = link, on_end
        self._sending = threading.Lock()
        self._sent_at = 0.0
        self._announced = MOST_STARTING_LOOKS

    def end_start(self) -> None:
        """This node has started: from now on its silence means that it is lost."""
        self._announced = MOST_SILENT_LOOKS
        with contextlib.suppress(OSError):  # its end is noticed by the one who looks
            self._send(bytes([self._announced]))

    def begin(self) -> None:
        """Beat and look from now on."""
        threading.Thread(target=self._run, daemon=True, name=f"heartbeat {self._link.peer}").start()

    def say(self, why: str) -> None:
        """This node ends: give the other one the reason, if it can still take it, and end the connection."""
        with contextlib.suppress(OSError):
            self._send(f"{why} ".encode()[:MOST_WORDS].rjust(2))
        with self._sending:
            self._link.end()

    def _run(self) -> None:
        try:
            self._on_end(self._end())
        finally:
            with self._sending:
                self._link.close()

    def _end(self) -> str:
        """Wait for the end of the other node, or of the connection; the reason."""
        silent, allowed = 0, MOST_STARTING_LOOKS
        while True:
            try:
                if time.monotonic() - self._sent_at >= LOOK_S:
                    self._send(bytes([self._announced]))
                silent = 0 if (heard := self._link.has_bytes(LOOK_S)) else silent + 1
                words = bytes(self._link.receive(MOST_WORDS, within_s=_WITHIN_S)) if heard else b""
            except (OSError, LinkError) as error:
                return _one_line(error, self._link.peer)
            if len(words) == 1:
                allowed = min(words[0], MOST_STARTING_LOOKS)
            elif words:
                return " ".join(words.decode(errors="replace").split())
            if silent >= allowed:
                return f"{self._link.peer} was silent for {silent * LOOK_S:g} s"

    def _send(self, message: bytes) -> None:
        with self._sending:
            self._link.send(message, within_s=_WITHIN_S)
            self._sent_at = time.monotonic()


def _one_line(error: Exception, peer: str) -> str:
    if isinstance(error, LinkError | TimeoutError):
        return str(error)
    return f"{peer} has closed the connection"
