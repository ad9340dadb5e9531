"""Sends requests to external backends: an HTTP server for Envoy's inner listener on a socket of the pod.

Beside the relay in its process, which alone has addresses and keys. A request gets no header of its client's, and an
answer none of the backend's but its type; redirects are not followed. What fails before the first byte is marked for
the relay, which asks the picker for the next one.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from kvasir_api import names, openai_errors
from kvasir_api.ended_requests import MOST_ID_CHARACTERS, EndedRequest
from kvasir_api.openai_errors import ApiError
from kvasir_gateway import unix_socket
from kvasir_gateway.backends import MOST_ENDED, BackendHealth, RelayReport
from kvasir_gateway.envoy.bootstrap import BACKENDS_SOCKET
from kvasir_gateway.relay import backend_answer
from kvasir_gateway.relay.app_runner import app_runner
from kvasir_gateway.relay.backend_answer import AnswerError, AnswerReader, BackendFailure, BodyError, SentBody
from kvasir_gateway.relay.backend_files import BackendBusyError, BackendFiles, OpenBackend
from kvasir_gateway.relay.kept_bytes import KeptBytes, KeptShare, NoRoomError

LOG = logging.getLogger(__name__)
READ_PERIOD_S: Final = 2.0
"""Between two looks at the files."""
SILENCE_S: Final = 300.0
"""Of a stream."""
MOST_AT_ONCE: Final = 1 << 14
"""Bytes of an answer that are read in one turn of the event loop."""
MAX_ERROR_BYTES: Final = 1 << 16
ERROR_S: Final = 10.0
"""For the text of an error."""


class BackendServer:
    """directory: shared with Envoy. files: of the backends. kept: what the process keeps of all requests."""

    def __init__(self, directory: Path, files: BackendFiles, kept: KeptBytes) -> None:
        self._socket, self._files, self._kept = directory / BACKENDS_SOCKET, files, kept
        self._ended: dict[str, EndedRequest] = {}
        self._estimated: dict[str, EndedRequest] = {}
        self._health = BackendHealth()

    def report(self) -> RelayReport:
        """What the picker has to know; requests that ended until it has them."""
        return RelayReport(
            backends=self._files.grants(),
            ended=tuple(self._ended.values()),
            estimated=tuple(self._estimated.values()),
            resting=self._health.resting(time.monotonic()),
        )

    def reported(self, report: RelayReport) -> None:
        """The picker has it."""
        for one in (*report.ended, *report.estimated):
            self._ended.pop(one.id, None)
            self._estimated.pop(one.id, None)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve while the context lasts."""
        await self._files.read()
        application = web.Application()
        application.router.add_post("/{path:.*}", self._answer)
        runner = app_runner(application)
        await unix_socket.listen(runner, self._socket, mode=0o660)
        reading = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await runner.cleanup()
            await self._files.close()
            self._socket.unlink(missing_ok=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(READ_PERIOD_S)
            try:
                await self._files.read()
            except Exception:
                LOG.exception("external backends cannot be read")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.headers.get(names.HEADER_BACKEND, "")
        backend = self._files.get(name)
        if backend is None:
            gone = backend_answer.unusable(f"The external backend {name} is gone", "backend_unavailable")
            return _failed(name, gone.error)
        namespace = request.headers.get(names.HEADER_SERVICE, "").partition("/")[0]
        try:
            with backend.session(namespace) as session, self._kept.share() as share:
                # Before the first wait: what is idle may be closed meanwhile.
                return await self._ask(request, backend, session, share)
        except NoRoomError as refused:
            return _failed(name, refused.error)
        except BackendBusyError:
            return _failed(name, backend_answer.busy(name).error)

    async def _ask(
        self, request: web.Request, backend: OpenBackend, session: aiohttp.ClientSession, share: KeptShare
    ) -> web.StreamResponse:
        name, model = backend.grant.name, request.headers.get(names.HEADER_BACKEND_MODEL, "")
        try:
            sent = backend_answer.sent_body(await share.body_of(request), request.path, model)
        except BodyError as refused:
            return _refused(refused.error)
        began_s = time.monotonic()
        try:
            return await self._exchange(request, backend, session, sent, began_s)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            LOG.warning("external backend %s failed: %s", name, type(error).__name__ if not str(error) else error)
            self._observe(request, began_s, failed=True)
            what = f"The external backend {name} cannot be reached, or does not answer as HTTP requires"
            return _failed(name, backend_answer.unusable(what, "backend_unavailable").error)

    async def _exchange(
        self,
        request: web.Request,
        backend: OpenBackend,
        session: aiohttp.ClientSession,
        sent: SentBody,
        began_s: float,
    ) -> web.StreamResponse:
        timeout = aiohttp.ClientTimeout(
            total=None,
            connect=session.timeout.connect,
            sock_connect=session.timeout.sock_connect,
            sock_read=SILENCE_S if sent.streams else None,
        )
        async with session.post(
            backend.base_url + request.path.removeprefix("/v1"),
            data=sent.content,
            headers=_headers(backend, sent),
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            try:
                failure = _failure(backend.grant.name, response, sent)
                if failure is not None:
                    if failure.rests:
                        self._observe(request, began_s, failed=True)
                    return _failed(backend.grant.name, failure.error)
                if response.status == 200:
                    return await self._pass_on(request, response, sent, began_s)
                refused = backend_answer.client_error(response.status, await _document(response))
                self._observe(request, began_s, failed=False)
                return _refused(refused)
            finally:
                _leave(response)

    async def _pass_on(
        self, request: web.Request, response: aiohttp.ClientResponse, sent: SentBody, began_s: float
    ) -> web.StreamResponse:
        reader, first_s = AnswerReader(sent), -1.0
        kind = backend_answer.STREAM_TYPE if sent.streams else backend_answer.JSON_TYPE
        answer = web.StreamResponse(headers={"content-type": kind, "cache-control": "no-cache"})
        try:
            async for chunk in response.content.iter_chunked(MOST_AT_ONCE):
                await asyncio.sleep(0)  # what is there already would let no other request go on
                passed = reader.feed(chunk)
                if passed and first_s < 0:
                    first_s = time.monotonic() - began_s
                    await answer.prepare(request)
                if passed:
                    await answer.write(passed)
            rest = reader.end()
            if first_s < 0:
                raise aiohttp.ClientPayloadError("the answer is empty")
            if rest:
                await answer.write(rest)
            await answer.write_eof()
            self._observe(request, began_s, failed=False)
        except (aiohttp.ClientError, TimeoutError, AnswerError) as error:
            if not answer.prepared:
                raise aiohttp.ClientPayloadError(str(error)) from error
            LOG.warning("the answer of an external backend broke: %s", error)
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            LOG.debug("the client of an external backend's answer is gone")
        finally:
            self._settle(request, reader, first_s)
        return answer

    def _observe(self, request: web.Request, began_s: float, *, failed: bool) -> None:
        """How the backend is under its route, by how a request to it ended."""
        service = request.headers.get(names.HEADER_SERVICE, "")
        self._health.observe(service, failed=failed, began_s=began_s, now_s=time.monotonic())

    def _settle(self, request: web.Request, reader: AnswerReader, first_s: float) -> None:
        inflight_id = request.headers.get(names.HEADER_INFLIGHT_ID, "")
        if not 0 < len(inflight_id) <= MOST_ID_CHARACTERS:
            return
        known = self._ended if reader.usage is not None else self._estimated
        if reader.usage is not None:
            used = msgspec.structs.asdict(reader.usage)
            known[inflight_id] = EndedRequest(id=inflight_id, **used, first_token_s=first_s)
        elif tokens := reader.estimated_tokens:
            known[inflight_id] = EndedRequest(id=inflight_id, completion_tokens=tokens, first_token_s=first_s)
        if len(known) > MOST_ENDED:  # the picker has not taken them for long
            del known[next(iter(known))]


def _headers(backend: OpenBackend, sent: SentBody) -> dict[str, str]:
    return {
        "content-type": backend_answer.JSON_TYPE,
        "accept": backend_answer.STREAM_TYPE if sent.streams else backend_answer.JSON_TYPE,
        "accept-encoding": "identity",
        "user-agent": names.GATEWAY,
        **({"authorization": f"Bearer {backend.key}"} if backend.key else {}),
    }


def _failure(name: str, response: aiohttp.ClientResponse, sent: SentBody) -> BackendFailure | None:
    """Why the head of an answer is none; None for the head of one, and of an error about the request."""
    if response.status == 200:
        why = backend_answer.type_error(sent, response.headers)
        what = f"The external backend {name}: {why}"
        found = backend_answer.unusable(what, backend_answer.INVALID, rests=False) if why else None
    else:
        why = f"it answers with status {response.status}"
        found = backend_answer.failure(name, response.status, response.headers.get("retry-after", ""))
    if found is not None:
        LOG.warning("external backend %s: %s", name, why)
    return found


def _leave(response: aiohttp.ClientResponse) -> None:
    """Read no more of an answer that is not at its end: TLS would go on for half a minute until both sides agree."""
    connection = response.connection
    if not response.content.at_eof() and connection is not None and connection.transport is not None:
        connection.transport.abort()


async def _document(response: aiohttp.ClientResponse) -> bytes:
    """The beginning of an error."""
    found = bytearray()
    async with asyncio.timeout(ERROR_S):
        async for chunk in response.content.iter_any():
            found += chunk
            if len(found) >= MAX_ERROR_BYTES:
                break
    return bytes(found[:MAX_ERROR_BYTES])


def _refused(error: ApiError) -> web.Response:
    status, document, headers = openai_errors.response(error)
    return web.Response(status=status, body=document, headers=headers)


def _failed(name: str, error: ApiError) -> web.Response:
    response = _refused(error)
    response.headers[names.HEADER_BACKEND_FAILED] = name
    return response
