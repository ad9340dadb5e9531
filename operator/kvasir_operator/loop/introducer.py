"""Gives each process of a service what it needs of the others: keys and peers.

All get the keys of continuation tokens, so that one goes on with the streams of another. To one that starts the peers
that serve are named, so that it computes what they are asked most before it is ready. Each tick gives the replicas that
there are; a process that does not confirm its peers gets them again while it starts, as does one that starts for so
long that its calls to them would be too old, and one whose `/state` has other keys, as after a restart, gets those.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kvasir_api import names
from kvasir_api.ops_tokens import TOLERANCE_S
from kvasir_api.sealed_keys import keys_digest, sealed
from kvasir_kube.kinds import Key
from kvasir_operator.loop.ops_calls import CalledProcess, OpsCalls, called_process
from kvasir_operator.observed.replica import Replica

LOG: Final = logging.getLogger(__name__)
TOLD_AGAIN_S: Final = TOLERANCE_S / 3
"""A model may take longer to load than a token is accepted."""


def introductions(replicas: Sequence[Replica], service: Key) -> dict[CalledProcess, tuple[CalledProcess, ...]]:
    """By each process of a service that starts: the peers whose cache is worth most."""
    starting = [r for r in replicas if r.phase in ("starting", "loading") and r.live and r.ops_url]
    if not starting:
        return {}
    ready = [(r, r.reading) for r in replicas if r.phase == "ready" and r.live and r.ops_url and r.reading is not None]
    if not ready:
        return {}
    ready.sort(key=lambda found: (-found[1].reused_tokens, found[0].name))
    peers = tuple(called_process(r, service) for r, _ in ready[: names.MOST_PEERS])
    return {called_process(r, service): peers for r in starting if r.reading is not None and r.reading.instance}


def lacking_keys(replicas: Sequence[Replica], service: Key, digest: str) -> dict[CalledProcess, str]:
    """By each process of a service that takes keys and has others: the key to seal them to.

    digest: of the keys that it is to have. A process that does not trust the operator yet would refuse them.
    """
    found = [(r, r.reading) for r in replicas if r.live and r.ops_url and r.ops_keys and r.reading is not None]
    return {
        called_process(r, service): said.sealing_key
        for r, said in found
        if said.sealing_key and said.instance and said.continuation_keys != digest
    }


class Introducer:
    """Sends each process its peers once every TOLD_AGAIN_S while it starts, and its keys until it has them, in a task
    of its own: no tick waits for a process that does not answer. clock: seconds.
    """

    def __init__(self, calls: OpsCalls, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls, self._clock = calls, clock
        self._found: dict[CalledProcess, tuple[CalledProcess, ...]] = {}
        self._lacking: dict[CalledProcess, tuple[str, tuple[bytes, ...]]] = {}
        self._told: dict[CalledProcess, float] = {}
        self._news = asyncio.Event()

    def found(self, services: Iterable[tuple[str, Key, Sequence[Replica]]]) -> None:
        """services: the uid, the name and the replicas of each, all that there are."""
        self._found, self._lacking = {}, {}
        for service_uid, service, replicas in services:
            self._found |= introductions(replicas, service)
            if keys := self._calls.continuation_keys(service_uid):
                lacking = lacking_keys(replicas, service, keys_digest(keys))
                self._lacking |= {process: (sealing_key, keys) for process, sealing_key in lacking.items()}
        self._news.set()

    async def run(self) -> None:
        """Send what the last tick found, until cancelled; then what the next one did, when these have answered, or have
        not in time."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await asyncio.gather(self._introduce(self._found), self._give_keys(self._lacking))
            except Exception:
                LOG.exception("replicas did not get their peers and keys")

    async def _introduce(self, found: Mapping[CalledProcess, tuple[CalledProcess, ...]]) -> None:
        now_s = self._clock()
        told = {process: at_s for process, at_s in self._told.items() if now_s - at_s < TOLD_AGAIN_S}
        new = {process: peers for process, peers in found.items() if process not in told}
        done = await asyncio.gather(*(self._calls.introduce(process, peers) for process, peers in new.items()))
        confirmed = {process: now_s for process, heard in zip(new, done, strict=True) if heard}
        self._told = {process: at_s for process, at_s in told.items() if process in found} | confirmed

    async def _give_keys(self, lacking: Mapping[CalledProcess, tuple[str, tuple[bytes, ...]]]) -> None:
        calls = []
        for process, (sealing_key, keys) in lacking.items():
            try:
                calls.append(self._calls.give_keys(process, sealed(keys, sealing_key, process.instance)))
            except ValueError as error:
                LOG.warning("the process at %s names a key that is none: %s", process.base, error)
        await asyncio.gather(*calls)
