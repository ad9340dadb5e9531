"""Stands between the operator and a real API server, records what passes, and does harm at a chosen write.

Requests are forwarded as they are, with the operator's own token; watches are passed on line by line. The n-th write
after `arm` is where the fault happens; everything before and after goes through. Faults are those of the field's
studies of operators: crashes around a write, lost answers, refusals, watches that end, break, expire, lose events,
repeat them or are late, and old lists.
"""

import asyncio
import base64
import contextlib
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

import aiohttp
import yaml
from aiohttp import web

from kvasir_kube import http_sites

Kind = Literal[
    "kill before", "kill after", "lost answer", "server error", "conflict", "throttled", "watches cut", "watches gone",
    "watches broken", "frozen", "old lists", "dropped events", "doubled events", "late events",
]  # fmt: skip
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
FROZEN_S: Final = 3.0
LATE_S: Final = 2.0
DROPPED: Final = 3
"""So many events after the write reach nobody, on whichever watch they come."""
HOP: Final = {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}
GONE: Final = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
BROKEN: Final = b'{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError","message":"made up"}}\n'
LAST_WORDS: Final = {"watches cut": b"", "watches gone": GONE, "watches broken": BROKEN}
REFUSALS: Final = {"server error": 500, "conflict": 409, "throttled": 429}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at which write, counted from 1."""

    kind: Kind
    write: int


@dataclass(slots=True, eq=False)
class Watch:
    """A watch that is open now."""

    cut: asyncio.Event = field(default_factory=asyncio.Event)
    last_words: bytes = b""


class FaultProxy:
    """Run it as a context. kill: ends the operator without a word and starts another one."""

    def __init__(self, kubeconfig: Path, kill: Callable[[], None]) -> None:
        config = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
        self._server = config["server"].rstrip("/")
        ca = config.get("certificate-authority-data")
        data = base64.b64decode(ca).decode() if ca else Path(config["certificate-authority"]).read_text()
        self._tls = ssl.create_default_context(cadata=data)
        self._kill = kill
        self._fault: Fault | None = None
        self._writes: list[str] = []
        self._watches: set[Watch] = set()
        self._lists: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self._old: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self._thawed, self._in_time = asyncio.Event(), asyncio.Event()
        self._thawed.set()
        self._in_time.set()
        self._to_drop, self._copies = 0, 1
        self._refuse: Callable[[web.Request], None] | None = None
        self._busy: Counter[str] | None = None
        self._busy_s = 0
        self.fired = False
        self.listening = False  # whether the operator watches; the test says when another one starts
        self.url = ""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=0), auto_decompress=False, read_bufsize=1 << 22
        )
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await http_sites.TcpSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def arm(self, fault: Fault | None) -> None:
        """Count writes from here on; at the fault's one it happens."""
        self._fault, self.fired = fault, False
        self._to_drop, self._copies = 0, 1
        self._old.clear()
        self._writes.clear()

    @contextlib.contextmanager
    def away(self) -> Iterator[Counter[str]]:
        """Nobody answers while the context is open: watches end and requests are hung up on. Counts them by verb and
        path."""
        tried: Counter[str] = Counter()
        self._refuse = lambda request: tried.update([f"{request.method} {request.path}"])
        for watch in self._watches:
            watch.cut.set()
        try:
            yield tried
        finally:
            self._refuse = None

    @contextlib.contextmanager
    def busy(self, *, retry_after_s: int) -> Iterator[Counter[str]]:
        """Every write is answered with 429 while the context is open. Counts them by verb and path."""
        self._busy, self._busy_s = Counter(), retry_after_s
        try:
            yield self._busy
        finally:
            self._busy = None

    @contextlib.contextmanager
    def late(self) -> Iterator[None]:
        """Writes are carried out; answers to reads and events of watches are held back until the context ends."""
        self._in_time.clear()
        try:
            yield
        finally:
            self._in_time.set()

    @property
    def writes(self) -> list[str]:
        """Verb and path of every write since `arm`, in order."""
        return list(self._writes)

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        await self._thawed.wait()
        if self._refuse is not None:
            self._refuse(request)
            return self._hung_up(request)
        body = await request.read()
        if request.method == "GET":
            return await (self._watch(request) if request.query.get("watch") else self._read(request))
        self._writes.append(f"{request.method} {request.path}")
        if self._busy is not None:
            self._busy.update([f"{request.method} {request.path}"])
            return _refusal(429, "throttled", after_s=self._busy_s)
        if self._fault is None or len(self._writes) != self._fault.write:
            return await self._forward(request, body)
        self.fired = True
        return await self._harm(self._fault.kind, request, body)

    async def _harm(self, kind: Kind, request: web.Request, body: bytes) -> web.StreamResponse:
        match kind:
            case "kill before":
                self.listening = False
                self._kill()
                return self._hung_up(request)
            case "kill after" | "old lists":
                await self._forward(request, body)
                if kind == "old lists":
                    self._old = dict(self._lists)
                self.listening = False
                self._kill()
                return self._hung_up(request)
            case "lost answer":
                await self._forward(request, body)
                return self._hung_up(request)
            case "server error" | "conflict" | "throttled":
                return _refusal(REFUSALS[kind], kind, after_s=1)
            case "watches cut" | "watches gone" | "watches broken":
                for watch in self._watches:
                    watch.last_words = LAST_WORDS[kind]
                    watch.cut.set()
                return await self._forward(request, body)
            case "frozen":
                self._thawed.clear()
                asyncio.get_running_loop().call_later(FROZEN_S, self._thawed.set)
                await self._thawed.wait()
                return await self._forward(request, body)
            case "dropped events":
                self._to_drop = DROPPED
                return await self._forward(request, body)
            case "doubled events":
                self._copies = 2
                return await self._forward(request, body)
            case "late events":
                self._in_time.clear()
                asyncio.get_running_loop().call_later(LATE_S, self._in_time.set)
                return await self._forward(request, body)

    def _hung_up(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)

    async def _read(self, request: web.Request) -> web.StreamResponse:
        await self._in_time.wait()
        if old := self._old.pop(request.path_qs, None):
            status, headers, content = old
            return web.Response(status=status, headers=headers, body=content)
        response = await self._forward(request, b"")
        assert isinstance(response, web.Response)
        if response.status == 200 and isinstance(response.body, bytes):
            # The oldest answer to each list is kept: what an API server that lags behind might still say.
            self._lists.setdefault(request.path_qs, (200, _headers(response.headers), response.body))
        return response

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        url = self._server + request.path_qs
        headers = _headers(request.headers)
        async with self._session.request(request.method, url, headers=headers, data=body or None) as answer:
            return web.Response(status=answer.status, headers=_headers(answer.headers), body=await answer.read())

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        watch, passed = Watch(), web.StreamResponse()
        self.listening = True
        headers = {**_headers(request.headers), "Accept-Encoding": "identity"}
        self._watches.add(watch)
        try:
            timeout = aiohttp.ClientTimeout(total=None)
            async with self._session.get(self._server + request.path_qs, headers=headers, timeout=timeout) as answer:
                passed.set_status(answer.status)
                passed.headers.update(_headers(answer.headers))
                await passed.prepare(request)
                with contextlib.suppress(ConnectionResetError):
                    await self._lines(answer, passed, watch, request)
        finally:
            self._watches.discard(watch)
        return passed

    async def _lines(
        self, answer: aiohttp.ClientResponse, passed: web.StreamResponse, watch: Watch, request: web.Request
    ) -> None:
        cut = asyncio.create_task(watch.cut.wait())
        try:
            while True:
                line = asyncio.ensure_future(answer.content.readline())
                waiting: set[Any] = {line, cut}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if cut.done():
                    line.cancel()
                    if watch.last_words:
                        await passed.write(watch.last_words)
                    return
                if not (text := await line) or request.transport is None:
                    return  # of an operator that was killed: what is dropped here would not be missed
                await self._thawed.wait()
                await self._in_time.wait()
                if self._to_drop and b'"BOOKMARK"' not in text[:40]:
                    self._to_drop -= 1
                else:
                    await passed.write(text * self._copies)
        finally:
            cut.cancel()


def _refusal(code: int, reason: str, *, after_s: int) -> web.Response:
    status = {"kind": "Status", "code": code, "reason": reason, "message": f"made up: {reason}"}
    return web.json_response(status, status=code, headers={"Retry-After": str(after_s)})


def _headers(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP}
