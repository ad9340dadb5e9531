"""Serves the relay how its requests wait, and takes what it reports of external backends, over a unix socket in the
directory that only the pod's containers share."""

from pathlib import Path

import msgspec
from aiohttp import web

from kvasir_gateway import backends, held_places, unix_socket
from kvasir_gateway.held_places import HELD_SOCKET
from kvasir_gateway.picker.picker import Picker


class HeldServer:
    """The HTTP server of the relay."""

    def __init__(self, picker: Picker, directory: Path) -> None:
        self._picker, self._socket = picker, directory / HELD_SOCKET
        application = web.Application(client_max_size=backends.MOST_REPORT_BYTES)
        application.router.add_get("/", self._places)
        application.router.add_post("/", self._take_report)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> None:
        """Listen; the socket of an earlier process is replaced."""
        await unix_socket.listen(self._runner, self._socket)

    async def stop(self) -> None:
        """Close the server."""
        await self._runner.cleanup()
        self._socket.unlink(missing_ok=True)

    async def _take_report(self, request: web.Request) -> web.Response:
        try:
            report = backends.decode(await request.read())
        except msgspec.MsgspecError as error:
            return web.Response(status=400, text=f"{error}\n")
        self._picker.backends.take(report)
        self._picker.tenants.audit.take(report.ended)
        self._picker.tenants.audit.take(report.estimated, counts_prompt=False)
        return await self._places(request)

    async def _places(self, _request: web.Request) -> web.Response:
        return web.Response(body=held_places.encode(self._picker.places()), content_type="application/json")
