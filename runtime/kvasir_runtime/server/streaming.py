"""Responses: sends the output of a request to its client, streamed or whole.

Plain ASGI. A client that goes away, or reads nothing for too long, has its sequences aborted, so that their blocks are
free a step later; one that reads slowly gets fewer, larger chunks and stalls no other.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvasir_api import names
from kvasir_api.openai_errors import DRAINING, ENGINE_FAILED
from kvasir_runtime.client.engine_client import EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.frontend.errors import GenerationFailed
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.output_processor import OutputDelta, best_choices
from kvasir_runtime.frontend.parsing.parts import merged
from kvasir_runtime.server.api import sse
from kvasir_runtime.server.api.serializer import Serializer
from kvasir_runtime.server.output_collector import ClientGone, OutputCollector, ServingContext, engine_gone
from kvasir_runtime.server.tool_result_stream import ToolResultCollector

LINGER_S: Final = 30.0
LINGER_IDLE_S: Final = 2.0
"""For the next bytes of a client whose request was refused."""
LONG_LOGPROBS: Final = 1000
"""Places with logprobs from which a document is written beside the event loop."""
STREAM_HEADERS: Final = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class GenerationResponse(Response):
    """One accepted request on its way out. arrived: when it came, by the clock. on_end is called once."""

    def __init__(
        self,
        request: GenerationRequest,
        serializer: Serializer,
        context: ServingContext,
        *,
        arrived: float,
        on_end: Callable[[], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        collector = ToolResultCollector if request.tool_results is not None else OutputCollector
        self.collector = collector(request, context, arrived)
        self._request = request
        self._serializer = serializer
        self._context = context
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; whatever happens, no sequence of the request runs afterwards."""
        collector, registry, owner = self.collector, self._context.registry, self._context.owner
        scope["state"]["summary"] = collector.trace
        ids = {self._request.answer_id, scope["state"].get("request_id", self._request.answer_id)}
        registry.add(ids, collector, owner)
        watcher = asyncio.create_task(watch_disconnect(receive, collector.queue))
        try:
            if self._request.histories:
                await asyncio.to_thread(collector.replay, self._serializer)
            collector.submit()
            await (self._stream(send) if self._request.stream else self._send_whole(send))
        except EngineDeadError as dead:
            await self._refuse(send, GenerationFailed(engine_gone(str(dead))))
        except ClientGone:
            collector.end("abort")
        finally:
            watcher.cancel()
            registry.remove(ids, collector, owner)
            collector.close()
            self._on_end()

    async def _stream(self, send: Send) -> None:
        """Events: a beginning, text, the end; or an error and no end."""
        collector, serializer = self.collector, self._serializer
        try:
            # The first output decides the status, unless the queue is so long that the client needs a sign of life.
            deltas = await collector.deltas() if collector.num_open else []
        except GenerationFailed as failed:
            await self._refuse(send, failed)
            return
        headers = [(b"content-type", serializer.stream_type), *STREAM_HEADERS]
        if self._context.pieces and self._is_continuable():
            headers.append((names.HEADER_CONTINUATION.encode(), b"pieces"))
            headers.append((names.HEADER_ANSWER.encode(), self._request.answer_id.encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # The beginning has no token in it, though the first ones are known.
        begun = replace(collector.usage(), completion_tokens=0, reasoning_tokens=0)
        begin = b"" if collector.begun else serializer.begin(begun)
        collector.begun = True
        await self._write(send, begin + self._chunk(deltas) + self._pieces(first=True))
        try:
            while collector.num_open:
                await self._write(send, self._chunk(await collector.deltas()) + self._pieces())
        except GenerationFailed as failed:
            await self._write(send, self._token(failed) + serializer.broken(failed.error), more=False)
            return
        await self._write(send, serializer.end(collector.usage()), more=False)

    async def _send_whole(self, send: Send) -> None:
        """One JSON document after the last token."""
        collector = self.collector
        found: list[list[OutputDelta]] = [[] for _ in collector.choices]
        try:
            while collector.num_open:
                for delta in await collector.deltas() or ():
                    found[delta.index].append(delta)
        except GenerationFailed as failed:
            await self._refuse(send, failed)
            return
        whole = [
            OutputDelta(
                index=index,
                text="".join(delta.text for delta in found[drawn]),
                reason=found[drawn][-1].reason,
                tokens=[token for delta in found[drawn] for token in delta.tokens],
                token_ids=[token_id for delta in found[drawn] for token_id in delta.token_ids],
                prompt_logprobs=collector.choices[drawn].prompt_logprobs,
                stopped_by=found[drawn][-1].stopped_by,
                parts=merged(part for delta in found[drawn] for part in delta.parts),
                called=found[drawn][-1].called,
            )
            for index, drawn in enumerate(best_choices(self._request, collector.choices))
        ]
        write = partial(self._serializer.whole, whole, collector.usage())
        long = sum(len(one.tokens) + len(one.prompt_logprobs) for one in whole) > LONG_LOGPROBS
        document = await asyncio.to_thread(write) if long else write()
        headers = {"content-type": "application/json", "content-length": str(len(document))}
        await send_document(send, 200, document, headers)

    def _chunk(self, deltas: list[OutputDelta] | None) -> bytes:
        if deltas is None:
            return self._serializer.keep_alive
        return self._serializer.deltas(deltas, self.collector.usage() if self._request.continuous_usage else None)

    def _pieces(self, *, first: bool = False) -> bytes:
        """Pieces of the stream's continuation token up to what was just written, where the client wants them."""
        return self._continuation(first=first) if self._context.pieces else b""

    def _token(self, failed: GenerationFailed) -> bytes:
        """The continuation token of a stream that this replica does not finish; where all its pieces were sent, a mark
        that another one may."""
        code = failed.error.code or ""
        if self._context.pieces:
            is_handed_over = code in {DRAINING, ENGINE_FAILED} and self._is_continuable()
            return sse.comments(names.COMMENT_HANDED_OVER, code) if is_handed_over else b""
        return self._continuation(first=True) if code == DRAINING else b""

    def _is_continuable(self) -> bool:
        return self.collector.record is not None and self._serializer.stream_type == sse.STREAM_TYPE

    def _continuation(self, *, first: bool) -> bytes:
        """What the token has gained, in one comment, so that a client never has a part of what it stands for.

        first: with the origin before it. Empty where the stream cannot be continued or has no comments.
        """
        record = self.collector.record
        if record is None or not self._is_continuable():
            return b""
        pieces = [record.begin(), record.gained()] if first else [record.gained()]
        token = ".".join(piece for piece in pieces if piece)
        return sse.comments(names.COMMENT_CONTINUATION, token) if token else b""

    async def _refuse(self, send: Send, failed: GenerationFailed) -> None:
        """The response where nothing was sent yet."""
        await send_document(send, *self._serializer.refusal(failed.error))

    async def _write(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Waits while the client reads slowly. Raises ClientGone when it reads nothing for too long (`BoundedFlow`)."""
        if not body and more:
            return
        try:
            await send({"type": "http.response.body", "body": body, "more_body": more})
        except OSError as error:
            raise ClientGone from error


async def send_document(send: Send, status: int, document: bytes, headers: Mapping[str, str]) -> None:
    """A whole response."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": document})


class LingeringResponse(Response):
    """A document after which the connection is closed although the client still sends.

    What it sends is read and dropped for a while: closing a connection with unread bytes resets it, and the client may
    lose the response (RFC 9112, section 9.6).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as Starlette calls it
        """Send the document, wait until the client has sent its body or hung up, and end."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_S):
                sends = True
                while sends:
                    async with asyncio.timeout(LINGER_IDLE_S):
                        sends = bool((await receive()).get("more_body"))
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})


async def watch_disconnect(receive: Receive, queue: EventQueue) -> None:
    """Wakes the queue when the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    queue.leave()
