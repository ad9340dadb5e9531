"""The relay's HTTP server, for Envoy on the socket that the pod's containers share, and its reader of held requests.

It opens no connection but to two sockets beside its own: Envoy's inner listener and the picker's list of held requests.
Where there are external backends, `backend_server` beside it opens those to them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from kvasir_api import http_apis, openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_gateway import backends, held_places, unix_socket
from kvasir_gateway.envoy.bootstrap import INNER_SOCKET, RELAY_SOCKET
from kvasir_gateway.held_places import HELD_SOCKET, HeldPlaces
from kvasir_gateway.relay.app_runner import MAX_FIELD_BYTES, app_runner
from kvasir_gateway.relay.backend_files import BackendFiles
from kvasir_gateway.relay.backend_server import BackendServer
from kvasir_gateway.relay.relayed_request import QUIET_S, RelayedRequest

READ_PERIOD_S: Final = 0.5
READ_TIMEOUT_S: Final = 2.0
RETRY_AFTER_S: Final = 2.0


class NoRoomError(Exception):
    """A body is not kept. error: for its client."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class KeptBodies:
    """The bodies of all requests that the relay has now, each until its answer ends. max_bytes: of all together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._num_bytes = max_bytes, 0

    @contextlib.asynccontextmanager
    async def body_of(self, request: web.Request) -> AsyncIterator[bytes]:
        """The whole body. Raises NoRoomError, before it is read where its length is known."""
        taken, found = 0, bytearray()
        try:
            taken += self._take(request.content_length or 0)
            async for chunk in request.content.iter_any():
                found += chunk
                taken += self._take(max(0, len(found) - taken))
            body = bytes(found)
            del found
            yield body
        finally:
            self._num_bytes -= taken

    def _take(self, num_bytes: int) -> int:
        if num_bytes > self._max_bytes:
            raise NoRoomError(openai_errors.body_too_large(self._max_bytes))
        if self._num_bytes + num_bytes > self._max_bytes:
            message = "As many requests wait, or may be resumed, as there is memory for. Try again later."
            raise NoRoomError(openai_errors.overloaded(message, retry_after_s=RETRY_AFTER_S))
        self._num_bytes += num_bytes
        return num_bytes


class RelayServer:
    """directory: shared with Envoy and the picker. max_body_bytes: of the bodies of all requests together. backends:
    directory of the external backends, None for none. quiet_s: see `RelayedRequest`."""

    def __init__(
        self, directory: Path, *, max_body_bytes: int, backends: Path | None = None, quiet_s: float = QUIET_S
    ) -> None:
        self._directory, self._quiet_s = directory, quiet_s
        self._backends = BackendServer(directory, BackendFiles(backends)) if backends is not None else None
        self._socket = directory / RELAY_SOCKET
        self._places: HeldPlaces = {}
        self._bodies = KeptBodies(max_body_bytes)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until stop is set; then streams have STOP_GRACE_S to end."""
        async with contextlib.AsyncExitStack() as stack:
            session = await stack.enter_async_context(self._session())
            if self._backends is not None:
                await stack.enter_async_context(self._backends.serving())

            async def relay(request: web.Request) -> web.StreamResponse:
                try:
                    async with self._bodies.body_of(request) as body:
                        relayed = RelayedRequest(
                            request, body, session=session, place_of=self._places.get, quiet_s=self._quiet_s
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
