"""Takes the engine's outputs of one request, turns them into deltas, and measures.

One OutputCollector for each request, used by its response on the event loop: one wake-up per step and request.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from kvasir_api import openai_errors
from kvasir_api.openai_errors import QUEUE_CODES, ApiError
from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.frontend import continuation
from kvasir_runtime.frontend.continuation import TokenSigner
from kvasir_runtime.frontend.errors import GenerationFailed
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.output_processor import OutputDelta, OutputProcessor, output_processors
from kvasir_runtime.frontend.stream_record import StreamRecord, replayed
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.server.admission import clamped_retry_s
from kvasir_runtime.server.api.serializer import RequestUsage, Serializer
from kvasir_runtime.server.observability.request_metrics import RequestMetrics, SequenceStats
from kvasir_runtime.server.observability.tracing import RequestTrace, asked
from kvasir_runtime.server.request_registry import RequestRegistry
from kvasir_runtime.wire import EngineOutput, EngineRequest, FinishReason

KEEP_ALIVE_S: Final = 15.0
TOOL_RESULT_TIMEOUT_S: Final = 600.0


class ClientGone(Exception):
    """The client went away or stopped reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingContext:
    """The parts of the process that answer requests, the same for all of them, and whose the request is.

    owner: identity of its tenant. keep_alive_s: without output, until a stream shows a sign of life.
    tool_result_timeout_s: how long an answer whose turn has ended waits for the next result of a tool. on_submit is
    called once for each HTTP request that generates, with its sequences. signer: of continuation tokens, None where
    this process writes none. pieces: the client requests their pieces as they come.
    """

    client: EngineClient
    tokenizer: Tokenizer
    metrics: RequestMetrics
    registry: RequestRegistry = field(default_factory=RequestRegistry)
    owner: bytes = field(default=b"", repr=False)
    clock: Callable[[], float] = time.monotonic
    keep_alive_s: float = KEEP_ALIVE_S
    tool_result_timeout_s: float = TOOL_RESULT_TIMEOUT_S
    on_submit: Callable[[Sequence[EngineRequest]], None] = lambda _: None
    signer: TokenSigner | None = None
    pieces: bool = False


@dataclass(slots=True)
class _Times:
    """Of one sequence, by the clock: its first and its last token, 0 before them; queue_s -1 before it ran."""

    first: float = 0.0
    last: float = 0.0
    queue_s: float = -1.0


class OutputCollector:
    """arrived: when the request came, by the clock. trace: what log and span show of the request after its end.

    record: of a stream that may be continued elsewhere, else None. begun: the client has a part of the answer.
    """

    def __init__(self, request: GenerationRequest, context: ServingContext, arrived: float) -> None:
        self.request = request
        self.trace = RequestTrace(
            answer_id=request.answer_id,
            model=request.model,
            asked=asked(request.requests[0].sampling),
            prompt_tokens=request.prompt_tokens,
        )
        self.queue = EventQueue()
        self.choices: list[OutputProcessor] = output_processors(request, context.tokenizer)
        self.num_open = len(request.requests)
        self._context = context
        self._client = context.client
        self._clock = context.clock
        self._arrived = self._submitted = arrived
        self._times = [_Times() for _ in request.requests]
        self._aborted = False
        self._failed: EngineOutput | None = None
        self._replayed_tokens = [len(history.ids) for history in request.histories] or [0] * len(request.requests)
        self.begun = bool(request.histories)
        self.record: StreamRecord | None = None
        if context.signer is not None and request.stream and continuation.may_continue(request):
            self.record = StreamRecord(request, self.choices, context.signer.writer(request))

    def submit(self) -> None:
        """Send what is open of the request to the engine. Raises EngineDeadError."""
        self._submitted = self._clock()
        places = [place for place, choice in enumerate(self.choices) if choice.open]
        self._client.submit([self.request.requests[place] for place in places], self.queue, places)
        self._context.on_submit(self.request.requests)

    def replay(self, serializer: Serializer) -> None:
        """Bring choices and serializer to where another replica left them. What that writes, the client has."""
        now, counted = self._clock(), self.request.continuous_usage
        for times, known in zip(self._times, self._replayed_tokens, strict=True):
            times.first = times.last = now if known else 0.0
        serializer.begin(self.usage())
        for delta in replayed(self.request, self.choices):
            if has_news(delta):
                serializer.deltas([delta], self.usage() if counted else None)
            self.num_open -= delta.reason is not None

    def abort(self) -> None:
        """End it because a client aborts it: its blocks are free a step later, and its response is an error."""
        self._aborted = True
        for index, choice in enumerate(self.choices):
            if choice.open:
                self._client.abort(choice.request_id)
                self.queue.put(index, EngineOutput(request_id=choice.request_id, finish_reason="abort"))

    def close(self) -> None:
        """End what still runs, and count the answers. Called once, whatever happened."""
        self.trace.completion_tokens = sum(choice.num_tokens for choice in self.choices)
        for choice in self.choices:
            if choice.open:
                choice.open = False
                self._client.abort(choice.request_id)
        counts = [choice.num_tokens for choice in self.choices]
        per_prompt = len(counts) // self.request.num_prompts
        for start in range(0, len(counts), per_prompt):
            self._context.metrics.answered(per_prompt, max(counts[start : start + per_prompt]))

    async def deltas(self) -> list[OutputDelta] | None:
        """What the next wake-up brings; None when nothing came for a while. Raises ClientGone and GenerationFailed."""
        if self._failed is not None:
            raise GenerationFailed(self._failure(self._failed))
        events = await self.queue.take(self._context.keep_alive_s)
        if events is None:
            raise ClientGone
        if not events:
            return None
        now = self._clock()
        found: list[OutputDelta] = []
        for index, event in events:
            if event.finish_reason in {"error", "abort"}:
                if self._can_wait_again(event):
                    self._submit_again(index, self.request.requests[index])
                    continue
                self._failed = event
                if found:  # which the client shall have before it learns of the end
                    return found
                raise GenerationFailed(self._failure(event))
            if event.queue_s >= 0:
                self._times[index].queue_s = event.queue_s
            if event.token_ids:
                self._measure(self._times[index], len(event.token_ids), now)
            delta = self._accept(index, event)
            choice = self.choices[index]
            self.num_open -= choice.is_missing
            if delta.reason is not None:
                if choice.stopped:
                    self._client.abort(choice.request_id, stopped=True)
                self._finish(index, delta.reason, now)
            if has_news(delta):
                found.append(delta)
        return found

    def _submit_again(self, index: int, request: EngineRequest) -> None:
        """Send a further request for a choice. The client may have a part: an engine that is gone is an event to it."""
        try:
            self._client.submit([request], self.queue, [index])
        except EngineDeadError as dead:
            self.queue.put(index, EngineOutput(request_id=request.request_id, finish_reason="error", message=str(dead)))

    def _can_wait_again(self, event: EngineOutput) -> bool:
        """Whether a choice that was handed back stays here: its client has a part of the answer, and there is time."""
        is_handed_back = event.code == openai_errors.DRAINING and not self._client.interrupted
        return is_handed_back and (self.begun or any(choice.num_tokens for choice in self.choices))

    def _accept(self, index: int, event: EngineOutput) -> OutputDelta:
        if self._replayed_tokens[index]:
            event = replace(event, cached_tokens=self.request.histories[index].cached_tokens)
        if self.record is not None:
            self.record.add(index, event)
        return self.choices[index].accept(event)

    def usage(self) -> RequestUsage:
        """Counts and times so far. A prompt with several choices counts the best cache hit among them once."""
        per_prompt = len(self.choices) // self.request.num_prompts
        cached = sum(
            max(choice.cached_tokens for choice in self.choices[start : start + per_prompt])
            for start in range(0, len(self.choices), per_prompt)
        )
        self.trace.cached_tokens = cached
        first = min((times.first for times in self._times if times.first), default=0.0)
        last = max(times.last for times in self._times)
        queue_s = max(0.0, *(times.queue_s for times in self._times))
        return RequestUsage(
            prompt_tokens=self.request.prompt_tokens,
            completion_tokens=sum(choice.num_tokens for choice in self.choices),
            reasoning_tokens=sum(choice.reasoning_tokens for choice in self.choices),
            cached_tokens=cached,
            total_s=self._clock() - self._arrived,
            queue_s=queue_s,
            first_token_s=first - self._arrived if first else -1.0,
            prompt_s=max(0.0, first - self._submitted - queue_s) if first else -1.0,
            answer_s=last - first if first else -1.0,
        )

    def end(self, reason: str) -> None:
        """All choices that are open end for this reason."""
        self.trace.reason = reason
        now = self._clock()
        for index, choice in enumerate(self.choices):
            if choice.open:
                self._count(index, reason, now)

    def _finish(self, index: int, reason: FinishReason, now: float) -> None:
        self.num_open -= 1
        self.trace.reason = reason
        self._count(index, reason, now)

    def _measure(self, times: _Times, count: int, now: float) -> None:
        last, times.last = times.last, now
        if last:
            self._context.metrics.tokens(count, now - last)
            return
        times.first = now
        self._context.metrics.first_token(now - self._arrived)
        if self.trace.first_token_s < 0:
            self.trace.first_token_s = now - self._arrived

    def _failure(self, event: EngineOutput) -> ApiError:
        if self._aborted:
            self.end("abort")
            return openai_errors.aborted()
        if event.code in QUEUE_CODES:
            self._context.metrics.rejected(event.code)
        self.end("abort" if event.code in (openai_errors.DRAINING, *QUEUE_CODES) else "error")
        return engine_failure(self._client, event)

    def _count(self, index: int, reason: str, now: float) -> None:
        choice, request, times = self.choices[index], self.request.requests[index], self._times[index]
        stats = SequenceStats(
            reason=reason,
            duration_s=now - self._arrived,
            queue_s=times.queue_s,
            prefill_s=max(0.0, times.first - self._submitted - max(0.0, times.queue_s)) if times.first else -1.0,
            decode_s=times.last - times.first if times.first else -1.0,
            prompt_tokens=len(request.prompt),
            cached_tokens=choice.cached_tokens,
            generation_tokens=choice.num_tokens - self._replayed_tokens[index],
            max_tokens=request.sampling.max_tokens,
            preemptions=choice.preemptions,
        )
        self.trace.sequences.append(stats)
        self._context.metrics.ended(stats)


def has_news(delta: OutputDelta) -> bool:
    """Whether there is something to be written."""
    return bool(delta.text or delta.parts or delta.token_ids or delta.reason is not None)


def engine_failure(client: EngineClient, output: EngineOutput) -> ApiError:
    """Why a sequence ended without an answer."""
    if output.code == openai_errors.DRAINING:
        return openai_errors.draining(output.message)
    if client.failure is not None or output.finish_reason == "abort":
        return engine_gone(output.message or "The request was ended by the server.")
    message = output.message or "The engine could not serve the request."
    if output.code in QUEUE_CODES:
        retry_s = clamped_retry_s(output.retry_after_s, random.random())
        return openai_errors.overloaded(message, retry_after_s=retry_s, code=output.code)
    return openai_errors.internal(message, code=output.code) if output.code else openai_errors.internal(message)


def engine_gone(message: str) -> ApiError:
    """The engine failed this request, not the request the engine: another replica may serve it."""
    return openai_errors.unavailable(message, retry_after_s=1.0, code=openai_errors.ENGINE_FAILED)
