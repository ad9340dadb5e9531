"""Sends this gateway's placements to the others as they come: `GET /placements` on the state port, line by line.

To them alone: they tell what the clients of all services send, and there are few places for listeners. Who asks is
known by its address, since gateways call one another without a proxy.

The first line names the gateway, an empty one says that nothing happened. A listener that reads too slowly is dropped;
it connects again and goes on from there, since readings show what it missed.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from kvasir_gateway import placements
from kvasir_gateway.placements import PlacementEvent

LOG = logging.getLogger(__name__)
MOST_LISTENERS: Final = 16
MOST_WAITING_BYTES: Final = 1 << 22
"""Of events that wait for a listener."""
SILENCE_S: Final = 2.0
"""After which an empty line is sent."""


class GatewayName(msgspec.Struct, frozen=True, kw_only=True):
    """The first line. gateway: another one after each start."""

    gateway: placements.Name


class Listener:
    """Lines that wait for one listener."""

    def __init__(self) -> None:
        self._waiting, self._some = bytearray(), asyncio.Event()

    def add(self, line: bytes) -> bool:
        """False where too much waits already."""
        if len(self._waiting) + len(line) > MOST_WAITING_BYTES:
            return False
        self._waiting += line
        self._some.set()
        return True

    async def next(self) -> bytes:
        """All lines that are there, or an empty one after a while."""
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._some.wait()
        except TimeoutError:
            return b"\n"
        self._some.clear()
        lines, self._waiting = bytes(self._waiting), bytearray()
        return lines


class PlacementFeed:
    """The events of one gateway for all that listen. found: base URLs of the state ports of all gateways."""

    def __init__(self, found: Callable[[], Iterable[str]]) -> None:
        self._found = found
        self.gateway = secrets.token_hex(8)
        self._listeners: set[Listener] = set()

    @property
    def num_listeners(self) -> int:
        """That get events."""
        return len(self._listeners)

    def publish(self, event: PlacementEvent) -> None:
        """Send an event to all listeners."""
        if self._listeners:
            line = placements.encode(event)
            self._listeners = {listener for listener in self._listeners if listener.add(line)}

    def close(self) -> None:
        """End all answers."""
        for listener in self._listeners:
            listener.add(b"\n")
        self._listeners = set()

    async def serve(self, request: web.Request, first: Iterable[PlacementEvent] = ()) -> web.StreamResponse:
        """The events from now on, to a gateway or to a process beside this one. first: how it is now."""
        if not may_listen(request.remote or "", self._found()):
            return web.Response(status=403, text="only gateways listen\n")
        if len(self._listeners) >= MOST_LISTENERS:
            return web.Response(status=503, text=f"{MOST_LISTENERS} gateways listen already\n")
        listener, response = Listener(), web.StreamResponse(headers={"content-type": "application/jsonl"})
        self._listeners.add(listener)
        for event in first:
            listener.add(placements.encode(event))
        try:
            await response.prepare(request)
            await response.write(msgspec.json.encode(GatewayName(gateway=self.gateway)) + b"\n")
            while listener in self._listeners:
                await response.write(await listener.next())
            await response.write_eof()
        except ConnectionError:
            LOG.debug("%s listens no more", request.remote)
        finally:
            self._listeners.discard(listener)
        return response


def may_listen(address: str, gateways: Iterable[str]) -> bool:
    """Whether an address is one of those gateways, or of this host. gateways: base URLs of their state ports."""
    try:
        remote = _ip(address)
        return remote.is_loopback or remote in {_ip(urlsplit(url).hostname or "") for url in gateways}
    except ValueError:
        return False


def _ip(address: str) -> IPv4Address | IPv6Address:
    """Raises ValueError. A socket of both families shows an IPv4 address as one of IPv6."""
    found = ip_address(address)
    return getattr(found, "ipv4_mapped", None) or found
