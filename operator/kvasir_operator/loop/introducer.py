"""Gives each process of a service what it needs of the others: keys and peers.

All get the keys of continuation tokens, so that one goes on with the streams of another. To one that starts the peers
that serve are named, so that it computes what they are asked most before it is ready. To those that stay the ones that
leave are named, so that they fetch what these are asked most while they drain, which wait for nothing. Each tick gives
the replicas that there are; a process that does not confirm its peers gets them again while it starts, as does one that
starts for so long that its calls to them would be too old, and one whose `/state` has other keys, as after a restart,
gets those.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
MOST_HEIRS: Final = 8
"""Replicas that fetch what one that leaves is asked most: it answers its last requests meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """What one that stays fetches of one that leaves: first its own share, of as many as there are that fetch."""

    leaving: CalledProcess
    share: int = 0
    shares: int = 1


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


def handoffs(replicas: Sequence[Replica], service: Key) -> dict[CalledProcess, tuple[Handoff, ...]]:
    """By each process of a service that stays and exchanges blocks: those that leave, of its revision, whose blocks it
    is to fetch. The one whose cache is worth most comes first; one of which nothing was found again is left out."""
    exchange = [(r, r.reading) for r in replicas if r.ops_url and r.reading and r.reading.kv_transfer_port > 0]
    leaving = [(r, said) for r, said in exchange if r.phase == "draining" and said.reused_tokens > 0]
    leaving.sort(key=lambda found: (-found[1].reused_tokens, found[0].name))
    found: dict[CalledProcess, tuple[Handoff, ...]] = {}
    for r, _ in leaving:
        staying = [
            (other, said)
            for other, said in exchange
            if other.phase == "ready" and other.live and other.drain_since is None and other.revision == r.revision
        ]
        staying.sort(key=lambda found: (-found[1].kv_host.free_tokens, found[0].name))
        heirs = staying[:MOST_HEIRS]
        for share, (heir, _) in enumerate(heirs):
            process = called_process(heir, service)
            handoff = Handoff(leaving=called_process(r, service), share=share, shares=len(heirs))
            found[process] = (*found.get(process, ()), handoff)
    return found


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
        self._handoffs: dict[CalledProcess, tuple[Handoff, ...]] = {}
        self._handed: set[tuple[CalledProcess, CalledProcess]] = set()
        """A process that stays, with one that leaves and was named to it."""
        self._told: dict[CalledProcess, float] = {}
        self._news = asyncio.Event()

    def found(self, services: Iterable[tuple[str, Key, Sequence[Replica]]]) -> None:
        """services: the uid, the name and the replicas of each, all that there are."""
        self._found, self._lacking, self._handoffs = {}, {}, {}
        for service_uid, service, replicas in services:
            self._found |= introductions(replicas, service)
            self._handoffs |= handoffs(replicas, service)
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
                await asyncio.gather(
                    self._introduce(self._found), self._give_keys(self._lacking), self._hand_off(self._handoffs)
                )
            except Exception:
                LOG.exception("replicas did not get their peers and keys")

    async def _introduce(self, found: Mapping[CalledProcess, tuple[CalledProcess, ...]]) -> None:
        now_s = self._clock()
        told = {process: at_s for process, at_s in self._told.items() if now_s - at_s < TOLD_AGAIN_S}
        new = {process: peers for process, peers in found.items() if process not in told}
        done = await asyncio.gather(*(self._calls.introduce(process, peers) for process, peers in new.items()))
        confirmed = {process: now_s for process, heard in zip(new, done, strict=True) if heard}
        self._told = {process: at_s for process, at_s in told.items() if process in found} | confirmed

    async def _hand_off(self, found: Mapping[CalledProcess, tuple[Handoff, ...]]) -> None:
        """Name to each process that stays the next one that leaves: it fetches from one after the other, and refuses
        meanwhile."""
        pairs = {(heir, one.leaving) for heir, several in found.items() for one in several}
        self._handed &= pairs
        due = [
            (heir, new[0])
            for heir, several in found.items()
            if (new := [one for one in several if (heir, one.leaving) not in self._handed])
        ]
        calls = (self._calls.prefetch(heir, one.leaving, share=one.share, shares=one.shares) for heir, one in due)
        done = await asyncio.gather(*calls)
        self._handed |= {(heir, one.leaving) for (heir, one), heard in zip(due, done, strict=True) if heard}

    async def _give_keys(self, lacking: Mapping[CalledProcess, tuple[str, tuple[bytes, ...]]]) -> None:
        calls = []
        for process, (sealing_key, keys) in lacking.items():
            try:
                calls.append(self._calls.give_keys(process, sealed(keys, sealing_key, process.instance)))
            except ValueError as error:
                LOG.warning("the process at %s names a key that is none: %s", process.base, error)
        await asyncio.gather(*calls)
