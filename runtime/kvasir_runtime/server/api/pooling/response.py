"""The answer to a request for vectors: sends its prompts to the engine, a window of them at a time, and one document.

Plain ASGI, as the answers with text. A client that goes away has its prompts aborted, so that their blocks are free a
step later. A request of thousands of inputs never holds more places of the queue than the batch has.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvasir_api import http_apis, openai_errors
from kvasir_api.openai_errors import QUEUE_CODES, ApiError
from kvasir_runtime.client.engine_client import EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.frontend.errors import GenerationFailed
from kvasir_runtime.server.api.pooling.prepare import PooledRequest
from kvasir_runtime.server.observability.request_metrics import SequenceStats
from kvasir_runtime.server.observability.tracing import RequestTrace
from kvasir_runtime.server.output_collector import ClientGone, ServingContext, engine_failure, engine_gone
from kvasir_runtime.server.streaming import send_document, watch_disconnect
from kvasir_runtime.wire import EngineOutput, EngineRequest

WAKE_S: Final = 60.0

Finish = Callable[[Sequence[EngineOutput]], Awaitable[bytes]]


class PooledResponse(Response):
    """One accepted request on its way out. finish: the document, from the last outputs of the prompts in order.

    window: prompts that are in the engine at a time. arrived: when it came, by the clock. on_end is called once.
    """

    def __init__(
        self,
        pooled: PooledRequest,
        context: ServingContext,
        finish: Finish,
        *,
        model: str,
        window: int,
        arrived: float,
        on_end: Callable[[], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        tokens = sum(len(request.prompt) for request in pooled.requests)
        self.trace = RequestTrace(answer_id=pooled.answer_id, model=model, prompt_tokens=tokens)
        self._pooled = pooled
        self._context = context
        self._client = context.client
        self._finish = finish
        self._window = window
        self._arrived = arrived
        self._on_end = on_end
        self._queue = EventQueue()
        self._open: dict[str, tuple[EngineRequest, float]] = {}
        self._aborted = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; whatever happens, no prompt of the request runs afterwards."""
        scope["state"]["summary"] = self.trace
        answer_id = self._pooled.answer_id
        ids = {answer_id, scope["state"].get("request_id", answer_id)}
        self._context.registry.add(ids, self, self._context.owner)
        watcher = asyncio.create_task(watch_disconnect(receive, self._queue))
        try:
            document = await self._finish(await self._outputs())
            self.trace.reason = "stop"
            headers = {"content-type": "application/json", "content-length": str(len(document))}
            await send_document(send, 200, document, headers)
        except EngineDeadError as gone:
            self._give_up("error")
            await _refuse(scope, send, engine_gone(str(gone)))
        except GenerationFailed as failed:
            await _refuse(scope, send, failed.error)
        except ClientGone:
            self._give_up("abort")
        finally:
            watcher.cancel()
            self._context.registry.remove(ids, self, self._context.owner)
            self._give_up("abort")
            self._on_end()

    def abort(self) -> None:
        """End the request by request of a client; its response has the reason."""
        self._aborted = True
        self._queue.put(0, EngineOutput(request_id="", finish_reason="abort"))

    async def _outputs(self) -> list[EngineOutput]:
        """The last output of every prompt, in order. Raises GenerationFailed, ClientGone and EngineDeadError."""
        waiting, found = deque(self._pooled.requests), dict[str, EngineOutput]()
        while waiting or self._open:
            batch = [waiting.popleft() for _ in range(min(len(waiting), self._window - len(self._open)))]
            if batch:
                now = self._context.clock()
                self._open |= {request.request_id: (request, now) for request in batch}
                self._client.submit(batch, self._queue)
            events = await self._queue.take(WAKE_S)
            if events is None:
                raise ClientGone
            for _, event in events:
                if event.finish_reason in {"error", "abort"}:
                    raise GenerationFailed(self._failure(event))
                if event.finish_reason is not None:
                    found[event.request_id] = event
                    self._close(event.request_id, "stop", event)
        return [found[request.request_id] for request in self._pooled.requests]

    def _failure(self, event: EngineOutput) -> ApiError:
        if self._aborted:
            return openai_errors.aborted()
        if event.code in QUEUE_CODES:
            self._give_up("abort")
            self._context.metrics.rejected(event.code)
        else:
            self._give_up("error")
        return engine_failure(self._client, event)

    def _give_up(self, reason: str) -> None:
        """Abort the prompts that are still open."""
        for request_id in list(self._open):
            self._client.abort(request_id)
            self._close(request_id, reason, EngineOutput(request_id=request_id))
            self.trace.reason = reason

    def _close(self, request_id: str, reason: str, event: EngineOutput) -> None:
        request, submitted = self._open.pop(request_id)
        now = self._context.clock()
        self.trace.cached_tokens += event.cached_tokens
        computed = event.finish_reason is not None
        ended = SequenceStats(
            reason=reason,
            duration_s=now - self._arrived,
            queue_s=event.queue_s,
            prefill_s=max(0.0, now - submitted - max(0.0, event.queue_s)) if computed else -1.0,
            decode_s=0.0 if computed else -1.0,
            prompt_tokens=len(request.prompt),
            cached_tokens=event.cached_tokens,
            preemptions=event.preemptions,
        )
        self.trace.sequences.append(ended)
        self._context.metrics.ended(ended)


async def _refuse(scope: Scope, send: Send, error: ApiError) -> None:
    status, document, headers = http_apis.error_response(error, scope["path"])
    await send_document(send, status, document, headers)
