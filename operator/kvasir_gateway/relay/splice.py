"""Joins what several replicas send of one stream into the stream of a replica that nothing disturbed. Pure.

A replica whose stream can be continued sends blocks of comments between events: pieces of a continuation token, which
stands for all events before it (docs/continuation.md). Events are passed on when the block behind them has come, so
that what the client has is what the token says; what came behind the last block is sent again by the next replica.
"""

from typing import Final

import msgspec

from kvasir_api import names

PIECE: Final = f": {names.COMMENT_CONTINUATION} ".encode()
HANDED_OVER: Final = f": {names.COMMENT_HANDED_OVER} ".encode()
END_OF_EVENT: Final = b"\n\n"


class StreamSplicer:
    """One stream of a client. Its work grows with what it is fed, and not with what came before.

    handed_over: why the replica does not finish the stream, "" while it does; what it sends behind that is its error.
    has_gained: whether the client got an event of this replica that a token stands for.
    """

    def __init__(self) -> None:
        self.handed_over = ""
        self.has_gained = False
        self._token = bytearray()
        self._is_new = True
        self._unread = bytearray()
        self._pending = bytearray()

    @property
    def token(self) -> str:
        """With which another replica goes on, "" before the first block. Copied at each call."""
        return self._token.decode("ascii", "replace")

    @property
    def kept_bytes(self) -> int:
        """Of the token, and of what the client does not have yet."""
        return len(self._token) + len(self._pending) + len(self._unread)

    def begin(self) -> None:
        """Another replica goes on: what the last one sent behind its last block is dropped."""
        self._unread.clear()
        self._pending.clear()
        self._is_new, self.handed_over, self.has_gained = True, "", False

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets now. chunk: the next bytes of the replica."""
        if self.handed_over:
            return b""
        searched = max(0, len(self._unread) - 1)
        self._unread += chunk
        end = self._unread.rfind(END_OF_EVENT, searched)
        if end < 0:
            return b""
        whole, self._unread = bytes(self._unread[: end + 2]), self._unread[end + 2 :]
        passed = bytearray()
        for event in whole.split(END_OF_EVENT)[:-1]:
            if event.startswith(HANDED_OVER):
                self.handed_over = event.removeprefix(HANDED_OVER).decode("ascii", "replace")
            elif event.startswith(PIECE):
                self._extend(event)
                self.has_gained |= bool(self._pending)
                passed += self._pending
                self._pending.clear()
            elif event.startswith(b":") and not self._pending:
                passed += event + END_OF_EVENT
            else:
                self._pending += event + END_OF_EVENT
        return bytes(passed)

    def end(self) -> bytes:
        """The replica has ended its stream as it should, or there is none that goes on: all that it has sent."""
        rest = bytes(self._pending + self._unread)
        self._pending.clear()
        self._unread.clear()
        return rest

    def _extend(self, block: bytes) -> None:
        if self._is_new:
            self._token.clear()
        else:
            self._token += b"."
        self._token += b"".join(line.removeprefix(PIECE) for line in block.split(b"\n"))
        self._is_new = False


def continued(body: bytes, token: str) -> bytes:
    """The body of the request that goes on. body: a JSON object, which stays byte by byte as the client wrote it.

    The token is the last field: of several with one name a replica takes the last, and the client may have sent a token
    of its own, from which the stream began.
    """
    inside = body.rstrip().removesuffix(b"}")
    comma = b"" if inside.rstrip().endswith(b"{") else b","
    return inside + comma + b'"continuation":' + msgspec.json.encode(token) + b"}"
