"""A runtime pod without an engine: streams pieces on its client port, serves /state and drain on its ops port.

Gateway tests, the fake kubelet and the tests of readings run it in their own process and set its faults;
`python -m fakes.stub_runtime ADDRESS NAME` is the same as a program for pods of a real cluster.
"""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import msgspec
from aiohttp import web

from kvasir_api import ended_requests, names, state
from kvasir_api.ended_requests import EndedRequest, EndedRequests
from kvasir_kube import http_sites


class StubRuntime:
    """Faults are fields that a test sets at any time.

    state: what /state returns; `set_state` changes fields of it. silent: /state fails. raw_state: bytes that /state
    returns instead. hold_state: /state waits for it. tokens: pieces of each stream. failure: status and body instead of
    a stream. refusals: so many requests it has no room for, as a runtime says it. refers_to: an address to which it
    sends all requests. hold_headers, hold_tokens: requests that begin while one is set wait for it, before the headers
    or after a piece. drains: methods of the drain calls so far. state_queries: of the reads of /state. ended: what
    /ended_requests lists; prompt_tokens: of each there. Streams of /v1/slow wait after their first piece until /release
    of the ops port is read. tls: of both ports, set before they listen.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = state.RuntimeState(phase="ready")
        self.tokens = 3
        self.failure: tuple[int, bytes] | None = None
        self.refusals, self.refers_to = 0, ""
        self.hold_headers: asyncio.Event | None = None
        self.hold_tokens: asyncio.Event | None = None
        self.silent = False
        self.raw_state: bytes | None = None
        self.hold_state: asyncio.Event | None = None
        self.tls: ssl.SSLContext | None = None
        self.drains: list[str] = []
        self.on_drain: Callable[[], None] = lambda: None
        self.state_queries: list[str] = []
        self.seen: list[web.Request] = []
        self.ended: list[EndedRequest] = []
        self.prompt_tokens = 11
        self.open = 0
        self.aborted = 0
        self.http_port = self.ops_port = 0
        self._released = asyncio.Event()
        self._runners: list[web.AppRunner] = []

    @property
    def state_reads(self) -> int:
        """How often /state was read."""
        return len(self.state_queries)

    def set_state(self, **fields: Any) -> None:
        """Change fields of /state; kv_pinned is a short form for a cache of 1000 tokens."""
        pinned = fields.pop("kv_pinned", None)
        if pinned is not None:
            fields["kv"] = state.KvState(capacity_tokens=1000, pinned_tokens=pinned, free_tokens=1000 - pinned)
        self.state = msgspec.structs.replace(self.state, **fields)

    async def start(self, address: str = "127.0.0.1", *, http_port: int = 0, ops_port: int = 0) -> Self:
        """Listen on both ports; 0 takes any free one."""
        clients = web.Application(client_max_size=1 << 30)
        for prefix in ("/v1", "/api"):
            clients.router.add_route("*", prefix + "/{tail:.*}", self._answer)
        self.http_port = await self._listen(clients, address, http_port)
        await self.start_ops(address, ops_port)
        return self

    async def start_ops(self, address: str, port: int = 0) -> None:
        """Listen on the ops port alone."""
        control = web.Application()
        control.router.add_get(names.PATH_STATE, self._state)
        control.router.add_get(names.PATH_ENDED_REQUESTS, self._ended_requests)
        control.router.add_route("*", names.PATH_DRAIN, self._drain)
        control.router.add_get("/release", self._release)
        self.ops_port = await self._listen(control, address, port)

    async def stop(self) -> None:
        """Stop listening; a TLS handshake that has begun has a moment to end before all are closed."""
        await self._stop_listening()
        await asyncio.sleep(0.01)
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def kill(self) -> None:
        """As SIGKILL does: every connection is reset and no port is open any more."""
        await self._stop_listening()
        for pause_s in (0.0, 0.01, 0.03):  # a connection that was accepted just now is made a little later
            await asyncio.sleep(pause_s)
            for runner in self._runners:
                for connection in runner.server.connections if runner.server else ():
                    if isinstance(connection.transport, asyncio.Transport):
                        connection.transport.abort()

    def piece(self, index: int) -> bytes:
        """One event of the stream."""
        return f'data: {{"pod": "{self.name}", "token": {index}, "text": "é☃"}}\n\n'.encode()

    def whole(self) -> bytes:
        """The whole stream."""
        return b"".join(self.piece(index) for index in range(self.tokens)) + b"data: [DONE]\n\n"

    async def _listen(self, application: web.Application, address: str, port: int) -> int:
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        await http_sites.TcpSite(runner, address, port, ssl_context=self.tls).start()
        taken: int = runner.addresses[0][1]
        return taken

    async def _ended_requests(self, request: web.Request) -> web.Response:
        """All, whatever the reader has already."""
        document = EndedRequests(instance=self.name, last=len(self.ended), requests=tuple(self.ended))
        return web.Response(body=ended_requests.encode(document))

    async def _stop_listening(self) -> None:
        for runner in self._runners:
            for site in list(runner.sites):
                await site.stop()

    async def _state(self, request: web.Request) -> web.Response:
        self.state_queries.append(request.query_string)
        if self.hold_state:
            await self.hold_state.wait()
        if self.silent:
            return web.Response(status=500)
        return web.Response(body=state.encode(self.state) if self.raw_state is None else self.raw_state)

    async def _drain(self, request: web.Request) -> web.Response:
        self.drains.append(request.method)
        self.set_state(phase="draining" if request.method == "POST" else "ready")
        self.on_drain()
        return web.Response(status=202)

    async def _release(self, _request: web.Request) -> web.Response:
        self._released.set()
        return web.Response()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(request)
        self.open += 1
        try:
            return await self._stream(request, json.loads(body or b"{}"))
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            self.open -= 1
            if inflight_id := request.headers.get(names.HEADER_INFLIGHT_ID):
                self.ended.append(
                    EndedRequest(id=inflight_id, prompt_tokens=self.prompt_tokens, completion_tokens=self.tokens)
                )

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        hold_headers, hold_tokens = self.hold_headers, self.hold_tokens
        if hold_headers:
            await hold_headers.wait()
        if self.refers_to:
            return web.Response(status=307, headers={"location": self.refers_to})
        if self.refusals:
            self.refusals -= 1
            back = request.headers.get(names.HEADER_REFER, "")
            headers = {"location": back} if back else {"retry-after": "1"}
            return web.Response(status=307 if back else 429, text='{"error": {"code": "overloaded"}}', headers=headers)
        if self.failure:
            return web.Response(status=self.failure[0], body=self.failure[1], content_type="application/json")
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-pod": self.name})
        await response.prepare(request)
        for index in range(self.tokens):
            await response.write(self.piece(index))
            if hold_tokens:
                await hold_tokens.wait()
            if request.path.endswith("/slow"):
                await self._released.wait()
            await asyncio.sleep(0)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


@asynccontextmanager
async def stub_runtimes(number: int) -> AsyncGenerator[list[StubRuntime]]:
    """So many that listen on loopback: pod-0 and the following."""
    async with AsyncExitStack() as stack:
        stubs = []
        for index in range(number):
            stubs.append(await StubRuntime(f"pod-{index}").start())
            stack.push_async_callback(stubs[-1].stop)
        yield stubs


async def main(address: str, name: str) -> None:
    """Serve until killed."""
    await StubRuntime(name).start(address, http_port=names.PORT_HTTP, ops_port=names.PORT_OPS)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
