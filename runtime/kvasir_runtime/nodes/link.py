"""A TCP connection between two nodes that carries frames: their number, their length and so many bytes.

The number counts the frames of one direction, so that a node that has left out or repeated one is noticed at the next.
Lengths are bounded by the reader before anything is read.
"""

import errno
import os
import select
import socket
import struct
import time
from typing import Final

_HEAD: Final = struct.Struct("<IQ")
_NUMBERS: Final = 1 << 32
WITH_HEAD_BYTES: Final = 16_384
"""Frames up to here are sent in one call with their head: the copy costs less than a packet of its own."""
LEAST_S: Final = 0.001
"""With 0 a socket would not wait at all."""


class LinkError(Exception):
    """What a node sent is no frame that may come here."""


class Link:
    """One end of a connection. Each direction is used by one thread at a time. peer: the other node, for messages."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.peer = peer
        self._connection = connection
        self._sent = self._received = 0

    def send(self, message: bytes | memoryview, *, within_s: float | None = None) -> None:
        """message: contiguous bytes. Raises OSError, TimeoutError after within_s."""
        if len(message) <= WITH_HEAD_BYTES:
            self._send_head(len(message), bytes(message), within_s)
            return
        begun = time.monotonic()
        self._send_head(len(message), b"", within_s)
        self._wait_for(None if within_s is None else begun + within_s - time.monotonic())
        self._connection.sendall(message)

    def receive(self, most: int, *, within_s: float | None = None) -> bytearray:
        """The next frame, of at most so many bytes. Raises OSError, TimeoutError after within_s, LinkError."""
        deadline = None if within_s is None else time.monotonic() + within_s
        length = self._head(deadline)
        if length > most:
            raise LinkError(f"{self.peer} sent {length:,} bytes where at most {most:,} may come")
        message = bytearray(length)
        self._fill(memoryview(message), deadline)
        return message

    def send_file(self, descriptor: int, offset: int, length: int, *, within_s: float) -> None:
        """A frame of bytes of a file, which the kernel copies; no thread may send beside it.

        Raises OSError, TimeoutError after within_s, EOFError where the file ends before.
        """
        deadline = time.monotonic() + within_s
        self._send_head(length, b"", within_s)
        while length:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"{self.peer} did not take a whole frame in time")
            try:
                count = os.sendfile(self._connection.fileno(), descriptor, offset, length)
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._connection, select.POLLOUT)
                poll.poll(left_s * 1000)
                continue
            if not count:
                raise EOFError("the file ends before the frame does")
            offset, length = offset + count, length - count

    def receive_into(self, target: memoryview, *, within_s: float | None = None) -> None:
        """The next frame, of exactly the target's bytes. Raises OSError, TimeoutError after within_s, LinkError."""
        deadline = None if within_s is None else time.monotonic() + within_s
        length = self._head(deadline)
        if length != len(target):
            raise LinkError(f"{self.peer} sent {length:,} bytes where {len(target):,} must come")
        self._fill(target, deadline)

    def has_bytes(self, timeout_s: float) -> bool:
        """Whether something, or the end, comes within so many seconds. Raises OSError."""
        descriptor = self._connection.fileno()
        if descriptor < 0:  # poll would not call it an error of a connection, as sending and receiving do
            raise OSError(errno.EBADF, f"the connection to {self.peer} was closed")
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def end(self) -> None:
        """End the connection for both nodes; a thread that waits for a frame gets an OSError. May be called again."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended
            return

    def close(self) -> None:
        """End it and free it; no thread may use it."""
        self.end()
        self._connection.close()

    def _send_head(self, length: int, message: bytes, within_s: float | None) -> None:
        head = _HEAD.pack(self._sent, length)
        self._sent = (self._sent + 1) % _NUMBERS
        self._wait_for(within_s)
        self._connection.sendall(head + message)

    def _wait_for(self, within_s: float | None) -> None:
        """What is sent next may take so long."""
        self._connection.settimeout(None if within_s is None else max(within_s, LEAST_S))

    def _head(self, deadline: float | None) -> int:
        raw = bytearray(_HEAD.size)
        self._fill(memoryview(raw), deadline)
        number, length = _HEAD.unpack(raw)
        if number != self._received:
            raise LinkError(f"{self.peer} sent frame {number} where frame {self._received} must come")
        self._received = (self._received + 1) % _NUMBERS
        return int(length)

    def _fill(self, target: memoryview, deadline: float | None) -> None:
        while target:
            # When the time is over, what has come is read still: this process may not have run meanwhile.
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            self._connection.settimeout(left_s)
            try:
                count = self._connection.recv_into(target)
            except (BlockingIOError, TimeoutError) as error:
                raise TimeoutError(f"{self.peer} did not send a whole frame in time") from error
            if not count:
                raise ConnectionResetError(f"{self.peer} has closed the connection")
            target = target[count:]
