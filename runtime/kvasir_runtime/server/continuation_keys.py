"""The keys that sign continuation tokens, from a file or a mounted Secret that may change, or from the operator.

Replicas of a service have the same. The first signs, all verify: a new key is added behind the first, and moved before
it when each replica has read it. The operator's come by the ops port, sealed to this process, and are kept in memory
alone: a process that was started again gets them again.
"""

import hashlib
import time
from collections.abc import Callable
from typing import Final

from kvasir_api.sealed_keys import SealingKey, keys_digest
from kvasir_runtime.client.engine_client import EngineClient
from kvasir_runtime.server.key_file import KeyFile

MIN_CHARACTERS: Final = 16
"""Of a key: less could be guessed."""
AWAITED_S: Final = 120.0
"""In which an operator sends the first keys to a process, if there is one."""


class ContinuationKeys(KeyFile[tuple[bytes, ...]]):
    """Keys of 32 bytes, one for each line. path: of a file or of a directory of files, empty for none. instance: of
    this process. receives: whether an operator may send keys, where there is no path. clock: seconds.
    """

    def __init__(
        self, path: str, *, instance: str = "", receives: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(path, parsed, ())
        self._sealing = SealingKey() if receives and not path else None
        self._instance = instance
        self._clock, self._awaited_until = clock, clock() + AWAITED_S

    @property
    def sealing_key(self) -> str:
        """The public key to which keys are sealed; empty where none are received."""
        return self._sealing.public if self._sealing is not None else ""

    @property
    def awaited(self) -> bool:
        """Whether an operator may still send the first keys: where none has for long, there is probably none."""
        return self._sealing is not None and not self.current and self._clock() < self._awaited_until

    @property
    def digest(self) -> str:
        """Names the keys that were received."""
        return keys_digest(self.current) if self._sealing is not None else ""

    def receive(self, sealed: str) -> None:
        """Take keys in the place of those before. Raises ValueError where they are not for this process."""
        if self._sealing is None:
            raise ValueError("this process takes no keys, or has them from a file")
        self.current = self._sealing.opened(sealed, self._instance)


class PeerKeySender:
    """Gives the engine what replicas of the service prove themselves with to one another, whenever it changes.

    keys: of continuations, which the replicas of a service share; the engine derives others from them."""

    def __init__(self, keys: ContinuationKeys, client: EngineClient) -> None:
        self._keys, self._client = keys, client
        self._sent: tuple[bytes, ...] = ()

    async def send(self) -> None:
        """Send them where blocks are exchanged, and they are not those that were sent last."""
        exchanges = self._client.ready is not None and self._client.ready.kv_transfer_port
        if exchanges and self._keys.current != self._sent:
            self._sent = self._keys.current
            self._client.use_peer_keys(self._sent)


def parsed(lines: list[bytes]) -> tuple[bytes, ...]:
    """Keys of 32 bytes. Raises ValueError for a line that is too short."""
    if any(len(line) < MIN_CHARACTERS for line in lines):
        raise ValueError(f"a key has fewer than {MIN_CHARACTERS} characters")
    return tuple(hashlib.sha256(line).digest() for line in lines)
