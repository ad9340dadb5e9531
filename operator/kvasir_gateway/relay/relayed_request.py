"""One request of the relay: what it sends to Envoy again, and what its client gets meanwhile and in the end.

A shell. It sends the request through Envoy's inner listener, so that the picker chooses the replica, or holds the
request, as for any other one. The client gets the head of the answer when there is one, or after a second comments that
tell how it waits.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from kvasir_api import http_apis, names, openai_errors
from kvasir_gateway.held_places import NO_REPLICA, HeldPlace
from kvasir_gateway.relay.splice import StreamSplicer, continued

LOG = logging.getLogger(__name__)
QUIET_S: Final = 1.0
"""Without a word to a client that waits: an answer, or a refusal, that comes sooner keeps its own status."""
SAME_S: Final = 10.0
"""Without a word to a client whose wait is as it was."""
MAX_FAILURES: Final = 3
"""Replicas that may fail under one stream: it may be what they fail from."""
UNAVAILABLE: Final = "upstream_unavailable"
"""The code of a request whose replicas could not be reached, or broke before an answer began."""
GIVEN_BACK: Final = (UNAVAILABLE, openai_errors.DRAINING, openai_errors.ENGINE_FAILED)
"""Codes of requests that another replica may have, since no byte was sent."""
NO_PICKER: Final = "gateway_unavailable"
"""The code of a request that the picker gave back when it ended, or that found none: another one starts."""
MAX_REFUSALS: Final = 30
PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 2.0
"""Between tries that brought the client nothing; each pause is twice as long as the one before."""
MAX_ERROR_BYTES: Final = 1 << 16
MAX_KEPT_BYTES: Final = 1 << 24
"""Of one stream, beside its body: the token of an answer of 250,000 tokens, or the prompt's logprobs in one event."""
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
NOT_SENT: Final = HOP_BY_HOP | {names.HEADER_RESUME, names.HEADER_INFLIGHT_ID, "accept-encoding"}
NOT_PASSED: Final = HOP_BY_HOP | {"x-request-id", "date", names.HEADER_BACKEND_FAILED}
MAX_TRIED: Final = 16
"""External backends under one request."""
BACKEND_SLASHES: Final = 2
"""In NAMESPACE/ROUTE/BACKEND; a pod cannot pass for one."""


class _Error(msgspec.Struct):
    code: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


class ClientDisconnected(Exception):
    """The client reads no more."""


class ClientStream:
    """The answer to the client. It begins with its head, which is an event stream's where a comment comes first."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response: web.StreamResponse | None = None

    @property
    def begun(self) -> bool:
        """Whether the client has a head."""
        return self._response is not None

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head, unless it was sent."""
        if self._response is None:
            self._response = web.StreamResponse(status=status, headers=headers)
            await self._response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        """Send bytes of the answer; waits while the client reads slowly. Raises ClientDisconnected."""
        assert self._response is not None
        try:
            if data:
                await self._response.write(data)
        except ConnectionError as error:
            raise ClientDisconnected from error

    async def end(self) -> web.StreamResponse:
        """The answer is whole."""
        assert self._response is not None
        await self._response.write_eof()
        return self._response

    def cut(self) -> web.StreamResponse:
        """The answer is not whole, and must not look so: the connection breaks."""
        assert self._response is not None
        if self._request.transport is not None:
            self._request.transport.abort()
        return self._response


class RelayedRequest:
    """place_of: how a request waits now, by the id that it has at the relay; None while it does not wait. quiet_s:
    without a word to its client, see QUIET_S. may_keep: whether there is room for so many bytes of the request, its
    body among them."""

    def __init__(
        self,
        request: web.Request,
        body: bytes,
        *,
        session: aiohttp.ClientSession,
        place_of: Callable[[str], HeldPlace | None],
        quiet_s: float = QUIET_S,
        may_keep: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._may_keep = may_keep
        self._request, self._body, self._session, self._quiet_s = request, body, session, quiet_s
        self._id = request.headers.get(names.HEADER_INFLIGHT_ID, "")
        # A client that requests the pieces goes on by itself.
        self._resumes = (
            request.headers.get(names.HEADER_RESUME) == "1" and names.HEADER_CONTINUATION not in request.headers
        )
        self._place_of = place_of
        self._streams = names.HEADER_STREAM in request.headers
        self._failed: tuple[aiohttp.ClientResponse, bytes] | None = None
        self._tried: list[str] = []
        self._client = ClientStream(request)
        self._splicer = StreamSplicer()
        self._service = self._answer_id = ""

    async def answer(self) -> web.StreamResponse:
        """The whole answer, or why there is none; a part of one ends with the connection."""
        try:
            return await self._answer()
        except ClientDisconnected:
            return self._client.cut()

    async def _answer(self) -> web.StreamResponse:
        failures = fruitless = 0
        pause_s = 0.0
        while failures <= MAX_FAILURES:
            await asyncio.sleep(pause_s)
            self._splicer.begin()
            try:
                async with await self._response() as response:
                    if response.status != 200:
                        document = await _document(response)
                        if self._falls_back(response, document):
                            continue
                        if self._failed is not None and _code(document) == NO_REPLICA:
                            return await self._refuse(*self._failed)
                        if not self._is_refused_for_now(response.status, document, fruitless):
                            return await self._refuse(response, document)
                    elif await self._pass_on(response):
                        return await self._client.end()
                    else:
                        failed = self._splicer.handed_over == openai_errors.ENGINE_FAILED
                        failures += failed or not self._splicer.has_gained
            except aiohttp.ClientError as error:
                LOG.info("the replica of a stream failed: %r", error)
                if not self._resumes:
                    break
                failures += 1
            fruitless += not self._splicer.has_gained
            pause_s = 0.0 if self._splicer.has_gained else min(MAX_PAUSE_S, PAUSE_S * 2**fruitless)
        return await self._give_up()

    def _falls_back(self, response: aiohttp.ClientResponse, document: bytes) -> bool:
        """Whether an external backend failed, so that the picker is asked for what comes next."""
        service = response.headers.get(names.HEADER_SERVICE, "")
        failed = names.HEADER_BACKEND_FAILED in response.headers and service.count("/") == BACKEND_SLASHES
        if not failed or len(self._tried) >= MAX_TRIED:
            return False
        self._tried.append(service)
        self._failed = response, document
        return True

    def _is_refused_for_now(self, status: int, document: bytes, fruitless: int) -> bool:
        """Whether no replica goes on with a stream yet, or replicas failed before one began, so that it is worth
        another try. fruitless: tries so far that brought the client nothing."""
        if self._splicer.token:
            return status in {429, 503} and fruitless < MAX_REFUSALS
        code = _code(document) if status == 503 else ""
        if code == NO_PICKER:  # a client that was told how it waits has its status, and would not try again
            return (self._resumes or self._client.begun) and fruitless < MAX_REFUSALS
        return self._resumes and fruitless < MAX_FAILURES and code in GIVEN_BACK

    async def _response(self) -> aiohttp.ClientResponse:
        """The head of a replica's answer. Meanwhile the client learns how its request waits."""
        sending = asyncio.create_task(self._send())
        last: HeldPlace | None = None
        silent_s = 0.0
        try:
            while not (await asyncio.wait({sending}, timeout=self._quiet_s))[0]:
                silent_s += self._quiet_s
                place = self._place_of(self._id)
                if self._streams and place is not None and (last is None or silent_s >= SAME_S or _differ(place, last)):
                    await self._client.begin(200, {"content-type": "text/event-stream", "cache-control": "no-cache"})
                    await self._client.write(comment(place))
                    last, silent_s = place, 0.0
            return sending.result()
        except BaseException:  # also where the client leaves just when the head has come
            await _closed(sending)
            raise

    async def _send(self) -> aiohttp.ClientResponse:
        token = self._splicer.token
        headers = _without(NOT_SENT, self._request.headers)
        headers[names.HEADER_RELAYED] = self._id
        if self._tried:
            headers[names.HEADER_TRIED] = ",".join(self._tried)
        if self._resumes:
            headers[names.HEADER_CONTINUATION] = "pieces"
        if token and self._service:  # no other one has the model that began it
            headers[names.HEADER_SERVICE] = self._service
            headers[names.HEADER_ANSWER] = self._answer_id
        return await self._session.post(
            URL(f"http://gateway{self._request.raw_path}", encoded=True),
            data=continued(self._body, token) if token else self._body,
            headers=headers,
            allow_redirects=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def _pass_on(self, response: aiohttp.ClientResponse) -> bool:
        """Pass a stream on; False where its replica hands it over. Raises ClientError where the replica fails."""
        own = {names.HEADER_CONTINUATION, names.HEADER_ANSWER} if self._resumes else frozenset()
        self._service = response.headers.get(names.HEADER_SERVICE, "")
        self._answer_id = response.headers.get(names.HEADER_ANSWER, "")
        await self._client.begin(200, _without(NOT_PASSED | own, response.headers))
        if response.headers.get(names.HEADER_CONTINUATION) != "pieces":
            self._stop_resuming()
        async for chunk in response.content.iter_any():
            if not self._resumes:
                await self._client.write(chunk)
                continue
            await self._client.write(self._splicer.feed(chunk))
            kept_bytes = self._splicer.kept_bytes
            if kept_bytes > MAX_KEPT_BYTES or not self._may_keep(len(self._body) + kept_bytes):
                await self._client.write(self._splicer.end())
                self._stop_resuming()
        if self._splicer.handed_over:
            return False
        await self._client.write(self._splicer.end())
        return True

    def _stop_resuming(self) -> None:
        """From here on the client gets the bytes of this replica, and a stream that breaks ends."""
        self._resumes, self._splicer = False, StreamSplicer()

    async def _refuse(self, response: aiohttp.ClientResponse, document: bytes) -> web.StreamResponse:
        """An answer that is no stream: as it is, or as an event where the stream has begun."""
        if self._client.begun:
            await self._client.write(error_event(document, self._request.path))
        else:
            await self._client.begin(response.status, _without(NOT_PASSED, response.headers))
            await self._client.write(document)
        return await self._client.end()

    async def _give_up(self) -> web.StreamResponse:
        """No replica answers, or goes on with what the client has."""
        error = openai_errors.unavailable(
            "The replica failed, and no other one went on with the answer.",
            retry_after_s=1.0,
            code=UNAVAILABLE,
        )
        status, document, headers = http_apis.error_response(error, self._request.path)
        if self._client.begun:
            if not self._splicer.token:
                return self._client.cut()
            await self._client.write(error_event(document, self._request.path))
        else:
            await self._client.begin(status, headers)
            await self._client.write(document)
        return await self._client.end()


async def _closed(sending: asyncio.Task[aiohttp.ClientResponse]) -> None:
    """End a request whose answer has no reader any more: a replica would compute it to its end."""
    sending.cancel()
    await asyncio.wait({sending})
    if not sending.cancelled() and sending.exception() is None:
        sending.result().close()


async def _document(response: aiohttp.ClientResponse) -> bytes:
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) >= MAX_ERROR_BYTES:
            break
    return bytes(found[:MAX_ERROR_BYTES])


def _code(document: bytes) -> str:
    """The code of an error in OpenAI's format, "" for none."""
    try:
        return msgspec.json.decode(document, type=_Refusal).error.code or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def comment(place: HeldPlace) -> bytes:
    """How a request waits, as a comment that clients of server-sent events skip."""
    document: dict[str, object] = {"place": place.place, "of": place.of, "phase": place.phase}
    if place.eta_s is not None:
        document["eta_s"] = round(place.eta_s, 1)
    return f": {names.COMMENT_HELD} ".encode() + msgspec.json.encode(document) + b"\n\n"


def error_event(document: bytes, path: str) -> bytes:
    """An error in the format of the path's API as the last event of a stream."""
    line = document.replace(b"\n", b" ")
    if http_apis.of(path) == "anthropic":
        return b"event: error\ndata: " + line + b"\n\n"
    if path != http_apis.RESPONSES:
        return b"data: " + line + b"\n\n"
    try:
        error = msgspec.json.decode(line, type=dict[str, dict[str, object]])["error"]
    except (msgspec.DecodeError, KeyError):
        error = {}
    fields = {"type": "error"} | {name: error.get(name) for name in ("code", "message", "param")}
    return b"event: error\ndata: " + msgspec.json.encode(fields) + b"\n\n"


def _differ(place: HeldPlace, last: HeldPlace) -> bool:
    return (place.place, place.phase) != (last.place, last.phase)


def _without(left_out: frozenset[str], headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in left_out)
