"""HTTP/1.1 connections to many small servers, kept open: one for each server, and a bounded number altogether.

`StateReader` reads thousands of pods in each period through them; a general client costs several times as much for each
request. A server that does not answer holds its own connection and no other's: while there are no more connections, the
servers that answered last time come first and those that were silent come last. A server of https:// is verified by the
name in its URL's fragment (`pod_tls`). Decides nothing about what is read.
"""

import asyncio
import resource
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

import httptools

from kvasir_kube.pod_tls import PodTls

MOST_OPEN: Final = 8192
HEAD_BYTES: Final = 64 * 1024
PRUNE_S: Final = 10.0
HANDSHAKE_S: Final = 5.0
IDLE_S: Final = 120.0
"""After so long without a request a connection is closed, and whether its server answered is forgotten."""


class HttpAnswer(NamedTuple):
    """A whole response."""

    status: int
    body: bytes


Done = Callable[["Exchange", HttpAnswer | None], None]
"""Takes what has ended and its answer, None where there is none: one function for thousands of requests, since one made
for each of them is four objects that the collector counts."""


class Exchange:
    """One request. base: such as http://10.1.2.3:8001. most_bytes: a longer body is no answer. authorization: that
    header, empty for none."""

    __slots__ = ("_done", "authorization", "base", "method", "most_bytes", "on_cancel", "over", "path", "retried")

    def __init__(
        self, base: str, method: str, path: str, *, most_bytes: int, done: Done, authorization: str = ""
    ) -> None:
        self.base, self.method, self.path, self.most_bytes, self._done = base, method, path, most_bytes, done
        self.authorization = authorization
        self.on_cancel: Callable[[], object] | None = None
        self.over = self.retried = False

    def end(self, answer: HttpAnswer | None) -> None:
        """Call what waits for the answer."""
        if not self.over:
            self.over = True
            self._done(self, answer)

    def cancel(self) -> None:
        """Give up without a call; the connection on which an answer might still come is closed."""
        if not self.over:
            self.over = True
            if self.on_cancel:
                self.on_cancel()


class Connection(asyncio.Protocol):
    """One connection to one server, for one exchange at a time. ended: called after each exchange, and at the end of
    the connection, with the exchange, its answer, and whether the connection can carry another one."""

    def __init__(
        self, where: SplitResult, ended: Callable[["Connection", Exchange | None, HttpAnswer | None, bool], None]
    ) -> None:
        self.used_at, self.answered = 0.0, False
        self._where, self._ended = where, ended
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._requests: dict[tuple[str, str], bytes] = {}
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._received, self._complete, self._status, self._kept = 0, False, 0, False

    def send(self, exchange: Exchange) -> None:
        """Write the request."""
        self._exchange, exchange.on_cancel = exchange, self.close
        self._received, self._complete = 0, False
        self._body.clear()
        if self._transport is not None:
            self._transport.write(self._request(exchange))

    def close(self) -> None:
        """At once; an exchange that is open gets no answer."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As of asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """As of asyncio.Protocol. What is no HTTP, too long or not requested ends the connection."""
        self._received += len(data)
        try:
            if self._exchange is None or self._received > self._exchange.most_bytes + HEAD_BYTES:
                raise httptools.HttpParserError("more than was requested")
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
            return
        if self._complete:
            self._answered(self._exchange)

    def on_body(self, body: bytes) -> None:
        """As httptools calls it."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """As httptools calls it. What follows a response begins the next one, so this one is judged here."""
        self._complete = True
        self._status, self._kept = self._parser.get_status_code(), bool(self._parser.should_keep_alive())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- the reason changes nothing
        """As of asyncio.Protocol."""
        self._transport = None
        del self._parser  # which refers to this object: no search for cycles is needed to free both
        exchange, self._exchange = self._exchange, None
        self._ended(self, exchange, None, False)

    def _answered(self, exchange: Exchange) -> None:
        self._exchange, self.answered = None, True
        body = b"".join(self._body)
        whole = len(body) <= exchange.most_bytes
        answer = HttpAnswer(status=self._status, body=body) if whole else None
        self._ended(self, exchange, answer, self._kept and whole)

    def _request(self, exchange: Exchange) -> bytes:
        """What is kept is without a query: those with one do not come again."""
        method, path = exchange.method, exchange.path
        request = self._requests.get((method, path))
        if request is None:
            length = "" if method == "GET" else "Content-Length: 0\r\n"
            request = f"{method} {self._where.path}{path} HTTP/1.1\r\nHost: {self._where.netloc}\r\n{length}".encode()
            if "?" not in path:
                self._requests[method, path] = request
        authorized = f"Authorization: {exchange.authorization}\r\n".encode() if exchange.authorization else b""
        return request + authorized + b"\r\n"


class HttpConnections:
    """All connections of a process. most_open: at any time, to all servers; 0 for half of the files that the process
    may open. tls: verifies servers of https://; without it none of them is reached."""

    def __init__(self, *, most_open: int = 0, tls: PodTls | None = None) -> None:
        self._tls = tls
        self._most_open = most_open or min(MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._idle: dict[str, Connection] = {}
        self._open: dict[Connection, str] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._queues: tuple[deque[Exchange], ...] = (deque(), deque(), deque())
        self._outcomes: dict[str, tuple[bool, float]] = {}
        self._pruned_at = 0.0

    @property
    def num_open(self) -> int:
        """Connections that are open or being opened."""
        return len(self._open) + len(self._opening)

    def send(self, exchange: Exchange) -> None:
        """Send a request now, or as soon as a connection may be opened. Its end is not before this returns."""
        connection = self._idle.pop(exchange.base, None)
        if connection is not None:
            connection.send(exchange)
        else:
            self._enqueue(exchange)

    def prune(self) -> None:
        """Close connections that were not used for long; to be called often, it looks now and then."""
        now = _now()
        if now - self._pruned_at < PRUNE_S:
            return
        self._pruned_at = now
        for base, connection in list(self._idle.items()):
            if now - connection.used_at > IDLE_S:
                self._drop(base, connection)
        self._outcomes = {base: last for base, last in self._outcomes.items() if now - last[1] <= IDLE_S}

    def close(self) -> None:
        """Close everything; open exchanges get no answer."""
        for task in list(self._opening):
            task.cancel()
        for connection in list(self._open):
            connection.close()

    def _enqueue(self, exchange: Exchange) -> None:
        known = self._outcomes.get(exchange.base)
        answered, new, silent = self._queues
        (new if known is None else answered if known[0] else silent).append(exchange)
        asyncio.get_running_loop().call_soon(self._open_more)

    def _open_more(self) -> None:
        answered, new, silent = self._queues
        while queue := answered or new or silent:
            if not queue[0].over and not self._make_room():
                return
            exchange = queue.popleft()
            if not exchange.over:
                self._connect(exchange)

    def _make_room(self) -> bool:
        """Whether one more may be opened, by the end of an idle one if need be."""
        if self.num_open >= self._most_open and self._idle:
            self._drop(*next(iter(self._idle.items())))
        return self.num_open < self._most_open

    def _drop(self, base: str, connection: Connection) -> None:
        del self._idle[base], self._open[connection]
        connection.close()

    def _connect(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._opened(exchange))
        self._opening.add(task)
        exchange.on_cancel = task.cancel

        def done(_: object) -> None:
            self._opening.discard(task)
            if task.cancelled():
                self._outcomes[exchange.base] = (False, _now())
            self._open_more()

        task.add_done_callback(done)

    async def _opened(self, exchange: Exchange) -> None:
        where = urlsplit(exchange.base)
        security = self._security(where)
        if security is None:
            exchange.end(None)  # the server was not asked, so that it does not count as silent
            return
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(where, self._ended), where.hostname or "", where.port or 80, **security
            )
        except (OSError, ValueError):
            self._outcomes[exchange.base] = (False, _now())
            exchange.end(None)
            return
        self._open[connection] = exchange.base
        connection.send(exchange)

    def _security(self, where: SplitResult) -> dict[str, Any] | None:
        """None where a server cannot be verified, since no authority is known yet."""
        if where.scheme != "https":
            return {}
        if self._tls is None or self._tls.context is None:
            return None
        return {"ssl": self._tls.context, "server_hostname": where.fragment, "ssl_handshake_timeout": HANDSHAKE_S}

    def _ended(self, connection: Connection, exchange: Exchange | None, answer: HttpAnswer | None, kept: bool) -> None:
        base, now = self._open.get(connection, ""), _now()
        if kept and base and base not in self._idle:
            connection.used_at = now
            self._idle[base] = connection
        else:
            self._open.pop(connection, None)
            if self._idle.get(base) is connection:
                del self._idle[base]
            connection.close()
        if exchange is not None:
            self._settle(connection, exchange, answer, now)
        self._open_more()

    def _settle(self, connection: Connection, exchange: Exchange, answer: HttpAnswer | None, now: float) -> None:
        if answer is None and connection.answered and not exchange.retried and not exchange.over:
            # A server may end an idle connection while a request is on its way to it.
            exchange.retried = True
            self._enqueue(exchange)
            return
        self._outcomes[exchange.base] = (answer is not None, now)
        exchange.end(answer)


def _now() -> float:
    return asyncio.get_running_loop().time()
