"""Follows the placements of the other gateways, so that all of them choose as one. See `placement_feed`.

A shell: one task for each gateway pod, which reads lines and hands events to the router. A gateway that cannot be
followed is known by the readings of the pods alone, as a half second is longer than none.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

import aiohttp
import msgspec

from kvasir_api import names
from kvasir_gateway import placements
from kvasir_gateway.picker.placement_feed import SILENCE_S, GatewayName
from kvasir_gateway.placements import RequestPlacement, TenantUse
from kvasir_gateway.router import EndpointRouter

LOG = logging.getLogger(__name__)
MOST_PEERS: Final = 15
LOOK_S: Final = 1.0
"""Between two looks at which gateways there are; one that is not followed is tried again with each."""
OWN_LOOKS: Final = 30
"""So many looks later the address of this gateway is tried again: another one may have it by then."""
TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=2.0, sock_read=3 * SILENCE_S)


class PeerGateways:
    """found: base URLs of the state ports of all gateways, this one too. own: the name of this one. used: takes what
    another one, by its name, counted of the limits of tenants; left: that it is not followed any more. look_s: between
    two looks at which gateways there are."""

    def __init__(
        self,
        router: EndpointRouter,
        *,
        own: str,
        found: Callable[[], Iterable[str]],
        used: Callable[[str, TenantUse], None],
        left: Callable[[str], None],
        clock: Callable[[], float],
        look_s: float = LOOK_S,
    ) -> None:
        self._router, self._own, self._found, self._clock = router, own, found, clock
        self._used, self._forget, self._look_s = used, left, look_s
        self.followed: dict[str, str] = {}
        """Names of the other gateways that are followed, by URL."""

    async def run(self) -> None:
        """Follow those that there are, until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        session = aiohttp.ClientSession(timeout=TIMEOUT, read_bufsize=placements.MOST_LINE_BYTES, trust_env=False)
        async with session:
            try:
                while True:
                    found = set(sorted(self._found())[: MOST_PEERS + 1])
                    for url in tasks.keys() - found:
                        tasks.pop(url).cancel()
                    for url in found:
                        if url not in tasks or _is_over(url, tasks[url]):
                            tasks[url] = asyncio.create_task(self._follow(session, url))
                    await asyncio.sleep(self._look_s)
            finally:
                for task in tasks.values():
                    task.cancel()
                await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _follow(self, session: aiohttp.ClientSession, url: str) -> None:
        """One try: until the connection ends, or for a while where it is this gateway's own address."""
        try:
            async with session.get(url + names.PATH_PLACEMENTS, allow_redirects=False) as response:
                response.raise_for_status()
                gateway = msgspec.json.decode(await response.content.readline(), type=GatewayName).gateway
                if gateway != self._own:
                    return await self._read(url, gateway, response.content)
            await asyncio.sleep(OWN_LOOKS * self._look_s)
        except (aiohttp.ClientError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
            LOG.info("the gateway at %s is not followed: %s", url, error)
        finally:
            self._left(url)

    async def _read(self, url: str, gateway: str, lines: aiohttp.StreamReader) -> None:
        """Until the connection ends. Raises ValueError and msgspec.MsgspecError for what no gateway writes."""
        if gateway in self.followed.values():
            raise ValueError("another address has its name")
        self.followed[url] = gateway
        self._renumber()
        while line := await lines.readline():
            if line == b"\n":
                continue
            event, now_s = placements.decode(line), self._clock()
            if isinstance(event, RequestPlacement):
                self._router.forwarded_elsewhere(gateway, event, now_s=now_s)
            elif isinstance(event, TenantUse):
                self._used(gateway, event)
            else:
                self._router.ended_elsewhere(gateway, event.id, now_s=now_s)

    def _left(self, url: str) -> None:
        gateway = self.followed.pop(url, "")
        if gateway:
            self._router.gateway_left(gateway, now_s=self._clock())
            self._forget(gateway)
            self._renumber()

    def _renumber(self) -> None:
        self._router.number = sorted({self._own, *self.followed.values()}).index(self._own)


def _is_over(url: str, task: asyncio.Task[None]) -> bool:
    """Whether a try to follow a gateway has ended. What no gateway can cause is logged, and ends no more than it."""
    if task.done() and not task.cancelled() and (error := task.exception()):
        LOG.error("following the gateway at %s failed", url, exc_info=error)
    return task.done()
