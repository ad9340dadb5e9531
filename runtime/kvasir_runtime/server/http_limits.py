"""HTTP/1.1 on one connection: uvicorn's, with bounds for the head of a request and for clients that read nothing, and
no doubt about where a body ends.

Given to uvicorn by listen.py. A client decides neither how long a head may be nor how long it takes to come, and a
request that two servers could cut differently is refused, whatever a proxy before us made of it (RFC 9112, section 6).
"""

import asyncio
from collections import Counter
from http import HTTPStatus
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kvasir_api import openai_errors

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 128
HEAD_S: Final = 10.0
"""From the first byte of a head, or the opening of a connection, to the head's end."""
WRITE_S: Final = 120.0


class HeadError(Exception):
    """A head that is rejected, with the reason. status: of the response."""

    def __init__(self, message: str, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class BoundedFlow(FlowControl):
    """Lets a response wait write_s seconds for a client that reads nothing; then `send` of ASGI raises TimeoutError.

    A class attribute, as below. Here and not around each `send`, so that a client that reads costs no timer.
    """

    write_s = WRITE_S

    async def drain(self) -> None:
        """Until there is room for more. A connection that ends here is not waited for any longer."""
        try:
            async with asyncio.timeout(self.write_s):
                await super().drain()
        except TimeoutError:
            self._transport.abort()
            raise


class BoundedProtocol(HttpToolsProtocol):
    """head_s: seconds for a head; a class attribute, as uvicorn makes the instances."""

    head_s = HEAD_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._parsed_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._refusal = HeadError("The request is not valid HTTP.")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected; its first request must follow."""
        super().connection_made(transport)
        self.flow = BoundedFlow(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes arrived, perhaps of several requests."""
        if self._in_head:
            self._await_head()
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_too_large())

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._parsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head."""
        self._count(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            self._fail(HeadError(f"The request has more than {MAX_HEADERS} header fields.", _too_large().status))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is here."""
        self._in_head = False
        self._head_came()
        seen = Counter(name for name, _ in self.headers)
        if seen[b"content-length"] > 1 or seen[b"host"] > 1 or seen[b"transfer-encoding"] > 1:
            self._fail(HeadError("A header field that determines how the request is read occurs twice."))
        if seen[b"content-length"] and seen[b"transfer-encoding"]:
            self._fail(HeadError("Content-Length and Transfer-Encoding exclude each other."))
        if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in self.headers):
            self._fail(HeadError("The only transfer coding that is known here is chunked."))
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is here too; another request may follow."""
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words
        """An invalid request, in OpenAI's shape."""
        self._refuse(self._refusal)

    def _count(self, size: int) -> None:
        self._parsed_bytes += size
        if self._parsed_bytes > MAX_HEAD_BYTES:
            self._fail(_too_large())

    def _fail(self, error: HeadError) -> None:
        """Raise out of a callback of the parser, which then calls send_400_response."""
        self._refusal = error
        raise error

    @property
    def _answers(self) -> bool:
        """Whether a response is under way."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _refuse(self, error: HeadError) -> None:
        if self._answers and self.cycle.response_started:
            self.transport.close()  # nothing may be written into the middle of it
            return
        _, document, headers = openai_errors.response(openai_errors.invalid(str(error), code="invalid_http"))
        lines = [
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
            *(f"{k}: {v}" for k, v in headers.items()),
        ]
        self.transport.write("\r\n".join([*lines, "connection: close", "", ""]).encode() + document)
        self.transport.close()

    def _await_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._expired)

    def _head_came(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        self._timer = None
        if not self._in_head or self.transport.is_closing():
            return
        if self._answers:
            self._await_head()  # a request that is sent ahead may wait for its turn
        elif self._head_bytes:
            self._refuse(HeadError("The request's head did not arrive in time.", HTTPStatus.REQUEST_TIMEOUT))
        else:
            self.transport.close()


def _too_large() -> HeadError:
    return HeadError(
        f"The request's head has more than {MAX_HEAD_BYTES} bytes.", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    )
