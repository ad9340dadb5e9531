"""The operator's calls that change something in a pod: signed for that process where there are keys.

Called by writer and introducer; best effort, since the next reading shows what became of a call. What a pod names as
its process may be another service's, to which it could send a call that is signed for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from kvasir_api import names
from kvasir_api.http_apis import is_instance_of
from kvasir_api.ops_tokens import SCHEME
from kvasir_api.served_names import qualified_name
from kvasir_kube.kinds import Key
from kvasir_kube.pod_tls import plain
from kvasir_kube.state_reader import Sign, StateReader, unsigned
from kvasir_operator.loop.signing_secret import SigningSecret
from kvasir_operator.observed.replica import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledProcess:
    """base: URL of a pod's ops port. service: whose pod it is. instance: what the pod names its process, empty for
    nothing."""

    base: str
    service: Key
    instance: str

    @property
    def is_own(self) -> bool:
        """Whether the instance is that of a process of the pod's service."""
        return is_instance_of(self.instance, qualified_name(*self.service))


def called_process(r: Replica, service: Key) -> CalledProcess:
    """The process of a replica, as it was read last."""
    return CalledProcess(base=r.ops_url, service=service, instance=r.reading.instance if r.reading else "")


class OpsCalls:
    """keys: None where no call is signed. Nor is one to a pod that names a process of another service.
    Pods of releases without the guard take it as it is."""

    def __init__(self, reader: StateReader, keys: SigningSecret | None = None) -> None:
        self._reader, self._keys = reader, keys

    @property
    def public_keys(self) -> str:
        """What pods are to trust; empty for nothing."""
        return self._keys.public if self._keys else ""

    async def drain(self, process: CalledProcess, *, on: bool) -> bool:
        """As StateReader's."""
        return await self._reader.drain(process.base, on=on, sign=self._sign(process))

    async def introduce(self, process: CalledProcess, peers: Sequence[CalledProcess]) -> bool:
        """As StateReader's. Each peer answers the one call that is signed for it here."""
        signed = {plain(peer.base): self._sign(peer)("GET", names.TARGET_PREFIXES) for peer in peers}
        tokens = {address: header.removeprefix(SCHEME) for address, header in signed.items()}
        return await self._reader.introduce(process.base, tokens, sign=self._sign(process))

    async def prefetch(
        self, process: CalledProcess, leaving: CalledProcess, *, share: int = 0, shares: int = 1
    ) -> bool:
        """As StateReader's, with the one call to the other that is signed here."""
        token = self._sign(leaving)("GET", names.TARGET_PREFIXES).removeprefix(SCHEME)
        return await self._reader.prefetch(
            process.base, plain(leaving.base), token, share=share, shares=shares, sign=self._sign(process)
        )

    def continuation_keys(self, service_uid: str) -> tuple[bytes, ...]:
        """What pods of a service are to have; none where there are no keys."""
        return self._keys.continuation_keys(service_uid) if self._keys else ()

    async def give_keys(self, process: CalledProcess, sealed: str) -> bool:
        """As StateReader's."""
        return await self._reader.give_keys(process.base, sealed, sign=self._sign(process))

    def _sign(self, process: CalledProcess) -> Sign:
        return partial(self._keys.authorization, process.instance) if self._keys and process.is_own else unsigned
