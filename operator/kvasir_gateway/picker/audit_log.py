"""Writes the lines of the audit log in a thread of its own, so that a slow reader of them stops no request."""

import contextlib
import io
import queue
import threading
from typing import Final

import msgspec

MOST_LINES: Final = 16_384
"""That wait to be written, of about half a KiB each."""
MOST_BYTES: Final = 64 << 20
"""Of all of them: a line has the path and the id that its client sent, which may be long."""
CLOSE_S: Final = 1.0


class AuditLog:
    """stream: unbuffered, since an interpreter that ends waits for the lock of a buffer."""

    def __init__(self, stream: io.RawIOBase, *, most_lines: int = MOST_LINES, most_bytes: int = MOST_BYTES) -> None:
        self._stream, self._most_bytes = stream, most_bytes
        self._taken_bytes = self._written_bytes = 0
        """Each is counted by one thread alone."""
        self._lines: queue.Queue[bytes] = queue.Queue(most_lines)
        self._dropped = self._told = 0
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Take a line; it is dropped, and counted in a line of its own later, where too many wait."""
        try:
            if self._taken_bytes - self._written_bytes + len(line) > self._most_bytes:
                raise queue.Full
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1
        else:
            self._taken_bytes += len(line)

    def close(self) -> None:
        """Write what waits, for a second at most."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(b"")
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while line := self._lines.get():
            dropped = self._dropped
            try:
                if dropped > self._told:
                    self._put(msgspec.json.encode({"audit": "dropped", "lines": dropped - self._told}) + b"\n")
                self._put(line)
                self._told = dropped
            except OSError:  # its reader is gone
                self._dropped += 1
            self._written_bytes += len(line)

    def _put(self, line: bytes) -> None:
        while line:
            line = line[self._stream.write(line) or 0 :]
