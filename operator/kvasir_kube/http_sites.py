"""Where aiohttp's servers listen, so that a connection that comes as one stops is served or closed.

asyncio loses a connection that it accepted in the same turn of the loop in which its server is closed (CPython issue
109564): its socket stays open without a reader, and its client waits until memory is collected.
"""

import asyncio

from aiohttp import web


async def stop_accepting(server: asyncio.Server) -> None:
    """Accept no more, and return when the protocols have what was accepted; then the server may be closed."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening)
    await asyncio.sleep(0)  # the transports are made
    await asyncio.sleep(0)  # the protocols get them


class _Site(web.BaseSite):
    async def stop(self) -> None:
        """Accept no more, let what was accepted become known to the runner, and then close."""
        if isinstance(self._server, asyncio.Server):
            await stop_accepting(self._server)
        await super().stop()


class TcpSite(_Site, web.TCPSite):
    """On an address."""


class SockSite(_Site, web.SockSite):
    """On a socket that is bound."""


class UnixSite(_Site, web.UnixSite):
    """On a unix socket."""
