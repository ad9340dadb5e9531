"""The relay's HTTP server, for Envoy on the socket that the pod's containers share, and its reader of held requests.

It opens no connection but to two sockets beside its own: Envoy's inner listener and the picker's list of held requests.
Where there are external backends, `backend_server` beside it opens those to them.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from kvasir_api import http_apis
from kvasir_gateway import backends, held_places, unix_socket
from kvasir_gateway.envoy.bootstrap import INNER_SOCKET, RELAY_SOCKET
from kvasir_gateway.held_places import HELD_SOCKET, HeldPlaces
from kvasir_gateway.relay.app_runner import MAX_FIELD_BYTES, app_runner
from kvasir_gateway.relay.backend_files import BackendFiles
from kvasir_gateway.relay.backend_server import BackendServer
from kvasir_gateway.relay.kept_bytes import KeptBytes, NoRoomError
from kvasir_gateway.relay.relayed_request import QUIET_S, RelayedRequest

READ_PERIOD_S: Final = 0.5
READ_TIMEOUT_S: Final = 2.0


class RelayServer:
    """directory: shared with Envoy and the picker. max_body_bytes: of what is kept of all requests. backends: directory
    of the external backends, None for none. quiet_s: see `RelayedRequest`."""

    def __init__(
        self, directory: Path, *, max_body_bytes: int, backends: Path | None = None, quiet_s: float = QUIET_S
    ) -> None:
        self._directory, self._quiet_s = directory, quiet_s
        self._kept = KeptBytes(max_body_bytes)
        self._backends = BackendServer(directory, BackendFiles(backends), self._kept) if backends is not None else None
        self._socket = directory / RELAY_SOCKET
        self._places: HeldPlaces = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until stop is set; then streams have STOP_GRACE_S to end."""
        async with contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(self._session())
            if self._backends is not None:
                await stack.enter_async_context(self._backends.serving())

            async def relay(request: web.Request) -> web.StreamResponse:
                try:
                    with self._kept.share() as share:
                        body = await share.body_of(request)
                        relayed = RelayedRequest(
                            request,
                            body,
                            session=session,
                            place_of=self._places.get,
                            quiet_s=self._quiet_s,
                            may_keep=share.can_have,
                        )
                        return await relayed.answer()
                except NoRoomError as refused:
                    status, document, headers = http_apis.error_response(refused.error, request.path)
                    return web.Response(status=status, body=document, headers=headers)

            application = web.Application()
            application.router.add_post("/{path:.*}", relay)
            application.on_response_prepare.append(_without_server)
            runner = app_runner(application)
            stack.push_async_callback(runner.cleanup)
            await unix_socket.listen(runner, self._socket, mode=0o660)
            stack.callback(self._socket.unlink, missing_ok=True)
            reading = asyncio.create_task(self._follow_places())
            stack.callback(reading.cancel)
            await stop.wait()

    def _session(self) -> aiohttp.ClientSession:
        """For requests of all clients: it keeps nothing of one that another one could get."""
        return aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path=str(self._directory / INNER_SOCKET), limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=MAX_FIELD_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            auto_decompress=False,
        )

    async def _follow_places(self) -> None:
        """Reads how requests wait, also while none does: the picker relays requests while it is asked. Reports
        external backends with it."""
        connector = aiohttp.UnixConnector(path=str(self._directory / HELD_SOCKET))
        timeout = aiohttp.ClientTimeout(total=READ_TIMEOUT_S)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                try:
                    report = None if self._backends is None else self._backends.report()
                    method, document = ("GET", None) if report is None else ("POST", backends.encode(report))
                    async with session.request(method, "http://picker/", data=document) as response:
                        found = held_places.decode(await response.read())
                    if self._backends is not None and report is not None:
                        self._backends.reported(report)
                except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
                    found = {}
                self._places.clear()
                self._places.update(found)
                await asyncio.sleep(READ_PERIOD_S)


async def _without_server(_request: web.Request, response: web.StreamResponse) -> None:
    """What answers is the replica."""
    response.headers.pop("server", None)
    response.headers.pop("date", None)
