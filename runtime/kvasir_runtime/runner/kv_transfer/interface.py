"""What fetching requires of a transport, whatever carries the blocks."""

from collections.abc import Callable, Sequence
from typing import Protocol


class PeerError(Exception):
    """A peer refuses, or does not behave as one; str() is one line."""


class BlockPeer(Protocol):
    """A connection to another replica. Used by one thread at a time. Times are monotonic seconds by which a call ends.

    All calls raise OSError, TimeoutError or PeerError; then the connection is of no use any more.
    """

    @property
    def hash_salt(self) -> bytes:
        """Secret from which the peer's hashes of blocks begin."""

    def ask(self, keys: Sequence[bytes], deadline: float) -> None:
        """Ask for blocks, by the peer's keys. What follows is read with `receive` up to its end."""

    def receive(self, place: memoryview, deadline: float) -> tuple[int, int] | None:
        """Fill a place with the next block that the peer holds: its index among the keys, in their order, and the
        checksum that the peer has kept of its key and content. None at the end.
        """

    def close(self) -> None:
        """No call follows."""


Connect = Callable[[str, float], BlockPeer]
"""From a peer's IP address and port, by a deadline. Raises as `BlockPeer`."""
