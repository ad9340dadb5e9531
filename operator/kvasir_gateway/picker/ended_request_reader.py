"""Reads from replicas what requests took that ended there, twice a second, while the picker awaits some of it.

A shell: a replica that does not answer, or with something else, is read again the next time; a limit of tokens then
counts what was estimated.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import msgspec

from kvasir_api import ended_requests, names
from kvasir_gateway.picker.request_audit import RequestAudit
from kvasir_kube.pod_tls import PodTls

LOG = logging.getLogger(__name__)
PERIOD_S: Final = 0.5
TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
MOST_BYTES: Final = 1 << 21
MOST_AT_ONCE: Final = 64


class EndedRequestReader:
    """ops_urls: of all replicas, by their addresses for clients. tls: verifies those that speak it."""

    def __init__(
        self,
        audit: RequestAudit,
        ops_urls: Callable[[], Mapping[str, str]],
        *,
        tls: PodTls,
        period_s: float = PERIOD_S,
    ) -> None:
        self._audit, self._ops_urls, self._tls, self._period_s = audit, ops_urls, tls, period_s
        self._read: dict[str, tuple[str, int]] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        connector = aiohttp.TCPConnector(limit=MOST_AT_ONCE)
        async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT, trust_env=False) as session:
            while True:
                awaited = self._audit.awaited()
                if awaited:
                    urls = self._ops_urls()
                    self._read = {address: seen for address, seen in self._read.items() if address in urls}
                    targets = [(address, urls[address]) for address in awaited if address in urls]
                    await asyncio.gather(*(self._take(session, *target) for target in targets))
                self._audit.expire()
                await asyncio.sleep(self._period_s)

    async def _take(self, session: aiohttp.ClientSession, address: str, url: str) -> None:
        instance, after = self._read.get(address, ("", 0))
        base, _, server_name = url.partition("#")
        context = self._tls.context
        if server_name and context is None:  # aiohttp would verify by the system's authorities
            return
        security: dict[str, Any] = {"ssl": context, "server_hostname": server_name} if server_name else {}
        query = {"instance": instance, "after": str(after)}
        try:
            async with session.get(
                base + names.PATH_ENDED_REQUESTS, params=query, allow_redirects=False, **security
            ) as response:
                response.raise_for_status()
                document = ended_requests.decode(await _body(response))
        except (aiohttp.ClientError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
            LOG.debug("%s does not report what its requests took: %s", address, error)
            return
        self._read[address] = document.instance, document.last
        self._audit.take(document.requests)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Raises ValueError for more than MOST_BYTES."""
    found = bytearray()
    async for part in response.content.iter_any():
        found += part
        if len(found) > MOST_BYTES:
            raise ValueError("it is too long")
    return bytes(found)
