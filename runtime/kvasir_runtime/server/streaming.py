"""Answers: takes a job's events from the engine and sends them to the client, streamed or whole.

Plain ASGI, one wake-up per step and request. A client that goes away, or reads nothing for too long, has its sequences
aborted, so that their blocks are free a step later; one that reads slowly gets fewer, larger chunks and stalls nobody.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.frontend.errors import GenerationFailed
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.frontend.output_processor import OutputProcessor, best_choices, output_processors
from kvasir_runtime.frontend.parsing.parts import Part, merged
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.server.api.openai.serialize import OpenAiSerializer
from kvasir_runtime.server.api.serializer import OutputDelta, RequestTotals, Serializer
from kvasir_runtime.server.observability.request_metrics import RequestMetrics, SequenceStats
from kvasir_runtime.server.observability.tracing import RequestTrace, asked
from kvasir_runtime.server.request_registry import RequestRegistry
from kvasir_runtime.wire import EngineOutput, FinishReason

KEEP_ALIVE_S: Final = 15.0
WRITE_TIMEOUT_S: Final = 120.0
STREAM_HEADERS: Final = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client went away or stopped reading."""


@dataclass(slots=True, kw_only=True)
class RequestSummary(RequestTrace):
    """What log and trace say of a request after its end."""

    reason: str = ""


class GenerationResponse(Response):
    """One accepted request on its way out; the base of the two forms. arrived: by clock. on_end is called once.

    framing: how it is written, made from job, created, fingerprint and labels. running: where it can be aborted.
    """

    def __init__(
        self,
        job: GenerationRequest,
        client: EngineClient,
        tokenizer: Tokenizer,
        *,
        meter: RequestMetrics,
        arrived: float,
        created: int,
        fingerprint: str,
        on_end: Callable[[], None],
        framing: Callable[[GenerationRequest, int, str, TokenLabels], Serializer] = OpenAiSerializer,
        running: RequestRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
        keep_alive_s: float = KEEP_ALIVE_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.job = job
        self.summary = RequestSummary(
            answer_id=job.answer_id,
            model=job.model,
            asked=asked(job.requests[0].sampling),
            prompt_tokens=job.prompt_tokens,
        )
        self._queue = EventQueue()
        self._framing = framing(job, created, fingerprint, TokenLabels(tokenizer, as_ids=job.as_token_ids))
        self._choices = output_processors(job, tokenizer)
        self._client = client
        self._on_end = on_end
        self._meter = meter
        self._running = RequestRegistry() if running is None else running
        self._aborted = False
        self._arrived = arrived
        self._clock = clock
        self._keep_alive_s = keep_alive_s
        self._write_timeout_s = write_timeout_s
        self._num_open = len(job.requests)
        self._submitted = arrived
        self._first = [0.0] * len(job.requests)
        self._last = [0.0] * len(job.requests)
        self._queue_s = [-1.0] * len(job.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; whatever happens, no sequence of it goes on afterwards."""
        scope["state"]["summary"] = self.summary
        ids = {self.job.answer_id, scope["state"].get("request_id", self.job.answer_id)}
        self._running.enter(ids, self)
        watcher = asyncio.create_task(_watch(receive, self._queue))
        self._submitted = self._clock()
        try:
            self._client.submit(self.job.requests, self._queue)
            await self._answer(send)
        except EngineDeadError as gone:
            await self._refuse(send, engine_gone(str(gone)))
        except ClientGone:
            self._end("abort")
        finally:
            watcher.cancel()
            self._running.leave(ids, self)
            self.summary.completion_tokens = sum(choice.num_tokens for choice in self._choices)
            for choice in self._choices:
                if choice.open:
                    choice.open = False
                    self._client.abort(choice.request_id)
            self._count_choices()
            self._on_end()

    def abort(self) -> None:
        """Somebody asked to end it: its blocks are free a step later, and its client is told why."""
        self._aborted = True
        for index, choice in enumerate(self._choices):
            if choice.open:
                self._client.abort(choice.request_id)
                self._queue.put(index, EngineOutput(request_id=choice.request_id, finish_reason="abort"))

    async def _answer(self, send: Send) -> None:
        raise NotImplementedError

    async def _refuse(self, send: Send, error: ApiError) -> None:
        """Where nothing was sent yet."""
        await send_document(send, *self._framing.refusal(error))

    async def _pieces(self) -> list[OutputDelta] | None:
        """What the next wake-up brings; None when nothing came for a while. Raises Gone and Failed."""
        events = await self._queue.take(self._keep_alive_s)
        if events is None:
            raise ClientGone
        if not events:
            return None
        now = self._clock()
        pieces = []
        for index, event in events:
            if event.finish_reason in {"error", "abort"}:
                raise GenerationFailed(self._failure(event))
            if event.queue_s >= 0:
                self._queue_s[index] = event.queue_s
            if event.token_ids:
                self._measure(index, len(event.token_ids), now)
            choice = self._choices[index]
            self._before(index, event)
            text, reason = choice.accept(event)
            parts = self._told(choice.parts())
            if self._goes_on(choice, reason):
                reason = None
            if choice.stopped and reason is not None:
                self._client.abort(choice.request_id, stopped=True)
            if reason is not None:
                self._num_open -= 1
                self._meter.ended(self._ended(index, reason, now))
                self.summary.reason = reason
            if text or parts or reason is not None:
                pieces.append(
                    OutputDelta(
                        index=index,
                        text=text,
                        reason=reason,
                        said=choice.said(),
                        ids=choice.ids(),
                        stopped_by=choice.stopped_by,
                        parts=parts,
                        called=self._calls(choice),
                    )
                )
        return pieces

    def _before(self, index: int, event: EngineOutput) -> None:
        """Before an event is taken in."""

    def _told(self, parts: list[Part]) -> list[Part]:
        """What the client is told of the parts that an event brought."""
        return parts

    def _goes_on(self, _choice: OutputProcessor, _reason: FinishReason | None, /) -> bool:
        """Whether a choice that ended is continued all the same."""
        return False

    def _calls(self, choice: OutputProcessor, /) -> bool:
        """Whether a choice that ends now asks for calls to be made."""
        return choice.called

    def _measure(self, index: int, count: int, now: float) -> None:
        last = self._last[index]
        self._last[index] = now
        if last:
            self._meter.tokens(count, now - last)
            return
        self._first[index] = now
        self._meter.first_token(now - self._arrived)
        if self.summary.first_token_s < 0:
            self.summary.first_token_s = now - self._arrived

    def _failure(self, event: EngineOutput) -> ApiError:
        if self._aborted:
            self._end("abort")
            return openai_errors.aborted()
        self._end("error")
        if self._client.failure is not None or event.finish_reason == "abort":
            return engine_gone(event.message or "The request was ended by the server.")
        return openai_errors.internal(event.message or "The engine could not serve the request.")

    def _end(self, reason: str) -> None:
        self.summary.reason = reason
        now = self._clock()
        for index, choice in enumerate(self._choices):
            if choice.open:
                self._meter.ended(self._ended(index, reason, now))

    def _ended(self, index: int, reason: str, now: float) -> SequenceStats:
        choice, request = self._choices[index], self.job.requests[index]
        first, last, queue_s = self._first[index], self._last[index], self._queue_s[index]
        waited_s = max(0.0, queue_s)
        ended = SequenceStats(
            reason=reason,
            duration_s=now - self._arrived,
            queue_s=queue_s,
            prefill_s=max(0.0, first - self._submitted - waited_s) if first else -1.0,
            decode_s=last - first if first else -1.0,
            prompt_tokens=len(request.prompt),
            cached_tokens=choice.cached_tokens,
            generation_tokens=choice.num_tokens,
            max_tokens=request.sampling.max_tokens,
        )
        self.summary.sequences.append(ended)
        return ended

    def _count_choices(self) -> None:
        counts = [choice.num_tokens for choice in self._choices]
        per_prompt = len(counts) // self.job.num_prompts
        for start in range(0, len(counts), per_prompt):
            self._meter.answered(per_prompt, max(counts[start : start + per_prompt]))

    def _ending(self) -> RequestTotals:
        """Cached tokens are of the prompts, so a prompt with several choices counts its best hit once."""
        per_prompt = len(self._choices) // self.job.num_prompts
        cached = sum(
            max(choice.cached_tokens for choice in self._choices[start : start + per_prompt])
            for start in range(0, len(self._choices), per_prompt)
        )
        self.summary.cached_tokens = cached
        first, last = min(filter(None, self._first), default=0.0), max(self._last)
        return RequestTotals(
            prompt_tokens=self.job.prompt_tokens,
            completion_tokens=sum(choice.num_tokens for choice in self._choices),
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self._choices),
            cached_tokens=cached,
            total_s=self._clock() - self._arrived,
            prompt_s=max(0.0, first - self._submitted - max(0.0, *self._queue_s)) if first else -1.0,
            answer_s=last - first if first else -1.0,
        )


class StreamedResponse(GenerationResponse):
    """Server-sent events: role, text, finish reason, usage if asked for, [DONE]; or an error and no [DONE]."""

    async def _answer(self, send: Send) -> None:
        try:
            # The first event decides the status, unless the queue is so long that the client needs a sign of life.
            pieces = await self._pieces()
        except GenerationFailed as failed:
            await self._refuse(send, failed.error)
            return
        framing = self._framing
        headers = [(b"content-type", framing.stream_type), *STREAM_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write(send, framing.begin(self._ending()) + self._body(pieces))
        try:
            while self._num_open:
                await self._write(send, self._body(await self._pieces()))
        except GenerationFailed as failed:
            await self._write(send, framing.broken(failed.error), more=False)
            return
        await self._write(send, framing.end(self._ending()), more=False)

    def _body(self, pieces: list[OutputDelta] | None) -> bytes:
        return self._framing.keep_alive if pieces is None else self._framing.pieces(pieces)

    async def _write(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Waits while the client reads slowly. Raises Gone when it reads nothing for too long."""
        if not body and more:
            return
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except (TimeoutError, OSError) as error:
            raise ClientGone from error


class WholeResponse(GenerationResponse):
    """One JSON document after the last token."""

    async def _answer(self, send: Send) -> None:
        parts: list[list[OutputDelta]] = [[] for _ in self._choices]
        try:
            while self._num_open:
                for piece in await self._pieces() or ():
                    parts[piece.index].append(piece)
        except GenerationFailed as failed:
            await self._refuse(send, failed.error)
            return
        pieces = [
            OutputDelta(
                index=index,
                text="".join(part.text for part in parts[drawn]),
                reason=parts[drawn][-1].reason,
                said=[token for part in parts[drawn] for token in part.said],
                ids=[token_id for part in parts[drawn] for token_id in part.ids],
                prompt_logprobs=self._choices[drawn].prompt_logprobs,
                stopped_by=parts[drawn][-1].stopped_by,
                parts=merged(found for part in parts[drawn] for found in part.parts),
                called=parts[drawn][-1].called,
            )
            for index, drawn in enumerate(best_choices(self.job, self._choices))
        ]
        document = self._framing.whole(pieces, self._ending())
        headers = {"content-type": "application/json", "content-length": str(len(document))}
        await send_document(send, 200, document, headers)


def engine_gone(message: str) -> ApiError:
    """The engine failed this request, not the request the engine: another replica may serve it."""
    return openai_errors.unavailable(message, retry_after_s=1.0, code="engine_failed")


async def send_document(send: Send, status: int, document: bytes, headers: Mapping[str, str]) -> None:
    """A whole response."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": document})


async def _watch(receive: Receive, queue: EventQueue) -> None:
    """Tells the queue when the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    queue.leave()
