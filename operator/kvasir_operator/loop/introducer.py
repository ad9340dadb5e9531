"""Names to a replica that starts the peers of its service that serve, so that it computes what they are asked most
before it is ready. Each tick gives the replicas that there are; a process that does not confirm gets its peers again
while it starts.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from kvasir_api import names
from kvasir_operator.loop.ops_calls import OpsCalls
from kvasir_operator.observed.replica import Replica

LOG: Final = logging.getLogger(__name__)


def introductions(replicas: Iterable[Replica]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """By the instance of each process that starts: its ops port and those of the peers whose cache is worth most."""
    found = [r for r in replicas if r.live and r.ops_url and r.reading is not None]
    ready = [r for r in found if r.phase == "ready"]
    ready.sort(key=lambda r: (-r.reading.reused_tokens if r.reading else 0, r.name))
    peers = tuple(r.ops_url for r in ready[: names.MOST_PEERS])
    starting = [r for r in found if r.phase in ("starting", "loading")] if peers else []
    return {r.reading.instance: (r.ops_url, peers) for r in starting if r.reading and r.reading.instance}


class Introducer:
    """Sends each process its peers once, in a task of its own: no tick waits for a process that does not answer."""

    def __init__(self, calls: OpsCalls) -> None:
        self._calls = calls
        self._found: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._told: set[str] = set()
        self._news = asyncio.Event()

    def found(self, services: Iterable[Iterable[Replica]]) -> None:
        """services: the replicas of each, all that there are."""
        self._found = {instance: told for replicas in services for instance, told in introductions(replicas).items()}
        self._news.set()

    async def run(self) -> None:
        """Send peers to those that were found last, until cancelled; to the next ones when these have answered, or have
        not in time."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._introduce(self._found)
            except Exception:
                LOG.exception("replicas that start were not told of their peers")

    async def _introduce(self, found: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
        new = {instance: told for instance, told in found.items() if instance not in self._told}
        told = [self._calls.introduce(base, instance, peers) for instance, (base, peers) in new.items()]
        done = await asyncio.gather(*told)
        confirmed = {instance for instance, heard in zip(new, done, strict=True) if heard}
        self._told = (self._told & set(found)) | confirmed
