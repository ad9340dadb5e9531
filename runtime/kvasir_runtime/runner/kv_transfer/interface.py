"""What fetching requires of a transport, whatever carries the blocks."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from kvasir_runtime.core.plan import PeerPrefill


class PeerError(Exception):
    """A peer refuses, or does not behave as one; str() is one line."""


class BlockQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Blocks that one replica asks another for. keys: the other's, one behind another.

    prefill: the blocks are of this prompt, `tokens` and `salt` as in `BlockFetch`, which is to be computed first.
    """

    keys: bytes
    prefill: PeerPrefill | None = None
    tokens: bytes = b""
    salt: bytes = b""


class BlockPeer(Protocol):
    """A connection to another replica. Used by one thread at a time. Times are monotonic seconds by which a call ends.

    All calls raise OSError, TimeoutError or PeerError; then the connection is of no use any more.
    """

    @property
    def hash_salt(self) -> bytes:
        """Secret from which the peer's hashes of blocks begin."""

    @property
    def content_s(self) -> float:
        """Seconds in which the content of blocks was read, since the last question."""

    def ask(self, query: BlockQuery, deadline: float) -> None:
        """Ask for blocks, by the peer's keys. What follows is read with `receive` up to its end."""

    def receive(self, place: memoryview, deadline: float) -> tuple[int, int] | None:
        """Fill a place with the next block that the peer holds, or has computed: its index among the keys, and the
        checksum that the peer has kept of its key and content. None at the end.
        """

    def end(self) -> None:
        """From another thread: the call that waits, and every later one, raises."""

    def close(self) -> None:
        """No call follows."""


class OpenPrefill(Protocol):
    """A prompt that the engine computes for another replica. Used by one thread."""

    def has_ended(self, wait_s: float) -> bool:
        """Whether it is computed, or refused; waits for at most so long."""


Prefill = Callable[[bytes, bytes, PeerPrefill], AbstractContextManager[OpenPrefill]]
"""Has the engine compute a prompt: its ids as `EngineRequest.packed_prompt`, its salt, and whose it is. What is left of
it when the context ends is not computed any more. Raises PeerError for a prompt that the model does not take.
"""

Connect = Callable[[str, float], BlockPeer]
"""From a peer's IP address and port, by a deadline. Raises as `BlockPeer`."""
