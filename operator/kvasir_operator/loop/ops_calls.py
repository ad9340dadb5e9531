"""The operator's calls that change something in a pod: signed for that process where there are keys.

Called by writer and introducer; best effort, since the next reading shows what became of a call.
"""

from collections.abc import Sequence
from functools import partial

from kvasir_kube.state_reader import Sign, StateReader, unsigned
from kvasir_operator.loop.signing_secret import SigningSecret


class OpsCalls:
    """keys: None where no call is signed."""

    def __init__(self, reader: StateReader, keys: SigningSecret | None = None) -> None:
        self._reader, self._keys = reader, keys

    @property
    def public_keys(self) -> str:
        """What pods are to trust; empty for nothing."""
        return self._keys.public if self._keys else ""

    async def drain(self, base: str, instance: str, *, on: bool) -> bool:
        """As StateReader's. instance: of the process, as its `/state` names it."""
        return await self._reader.drain(base, on=on, sign=self._sign(instance))

    async def introduce(self, base: str, instance: str, peers: Sequence[str]) -> bool:
        """As StateReader's. instance: of the process, as its `/state` names it."""
        return await self._reader.introduce(base, peers, sign=self._sign(instance))

    def _sign(self, instance: str) -> Sign:
        return partial(self._keys.authorization, instance) if self._keys else unsigned
