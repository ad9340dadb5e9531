"""How an answer is written on `/v1/responses`: one document, or events that are numbered and end in that document.

Made for each answer by the routes; it reports the document to them at every turn, so that it can be kept.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels, TokenLogprob, of_chat
from kvasir_runtime.frontend.output_processor import OutputDelta
from kvasir_runtime.frontend.parsing.parts import Content, join
from kvasir_runtime.server.api import sse
from kvasir_runtime.server.api.responses import output_items
from kvasir_runtime.server.api.responses.output_items import Document, Event, OutputItems
from kvasir_runtime.server.api.serializer import RequestUsage, answer_parts

Kept = Callable[[Document], None]


class ResponsesSerializer:
    """repeated: the fields that the document repeats of its request. keep: is called with the last document."""

    stream_type = sse.STREAM_TYPE
    keep_alive = sse.COMMENT

    def __init__(
        self,
        request: GenerationRequest,
        created: int,
        labels: TokenLabels,
        *,
        repeated: Document,
        keep: Kept = lambda _: None,
    ) -> None:
        self._request = request
        self._created = created
        self._labels = labels
        self._repeated = repeated
        self._keep = keep
        self._output = OutputItems(request.answer_id.removeprefix("resp_"))
        self._number = 0
        self._last = OutputDelta(index=0)
        self._ended = False

    def document(self, status: str = "in_progress", **fields: Any) -> Document:
        """The response as it is. The items of its output are complete once it ended."""
        return {
            "id": self._request.answer_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._request.model,
            "output": list(self._output.items),
            "usage": None,
            **self._repeated,
            **fields,
        }

    def begin(self, _so_far: RequestUsage) -> bytes:
        """The response without output."""
        response = {"response": self.document()}
        return self._told([("response.created", response), ("response.in_progress", response)])

    def deltas(self, deltas: Sequence[OutputDelta], _so_far: RequestUsage | None = None) -> bytes:
        """Events of all parts."""
        frames = []
        for delta in deltas:
            frames.append(self._told(self._grown(delta)))
            if delta.reason is not None:
                self._last = delta
        return b"".join(frames)

    def end(self, usage: RequestUsage) -> bytes:
        """The last item's end and the whole response."""
        cut = self._last.reason == "length"
        served_model: list[Event] = []
        if not self._output.items:  # a response has at least one item, also without output
            served_model = list(self._output.take(Content(""), []))
        closed = [*served_model, *self._output.close("incomplete" if cut else "completed")]
        document = self._finished(usage, cut=cut)
        return self._told([*closed, (f"response.{document['status']}", {"response": document})])

    def broken(self, error: ApiError) -> bytes:
        """The response as it is, with why it goes no further."""
        closed = list(self._output.close("incomplete"))
        document = self._failed(error)
        # The API has no event for cancelled: what was sent is valid but ends early, which is incomplete.
        kind = "response.incomplete" if document["status"] == "cancelled" else "response.failed"
        return self._told([*closed, (kind, {"response": document})])

    def whole(self, deltas: Sequence[OutputDelta], usage: RequestUsage) -> bytes:
        """One document."""
        (delta,) = deltas
        logprobs = self._logprobs(delta)
        for part in output_items.parts_of(join(answer_parts(delta, self._request))):
            list(self._output.take(part, logprobs if isinstance(part, Content) else []))
        cut = delta.reason == "length"
        list(self._output.close("incomplete" if cut else "completed"))
        return sse.encode(self._finished(usage, cut=cut))

    def refusal(self, error: ApiError) -> tuple[int, bytes, dict[str, str]]:
        """OpenAI's error."""
        self._failed(error)
        return openai_errors.response(error)

    def left(self) -> None:
        """Its client went away: what there is of it is all there will be."""
        if not self._ended:
            list(self._output.close("incomplete"))
            self._end(self.document("cancelled"))

    def _grown(self, delta: OutputDelta) -> Iterable[Event]:
        logprobs = self._logprobs(delta)
        for part in answer_parts(delta, self._request):
            yield from self._output.take(part, logprobs)
            if isinstance(part, Content):
                logprobs = []

    def _logprobs(self, delta: OutputDelta) -> list[TokenLogprob]:
        return of_chat(delta.tokens, self._labels, self._request.logprobs).content if delta.tokens else []

    def _finished(self, usage: RequestUsage, *, cut: bool) -> Document:
        document = self.document(
            "incomplete" if cut else "completed",
            completed_at=None if cut else int(self._created + usage.total_s),
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage=_usage(usage),
        )
        return self._end(document)

    def _failed(self, error: ApiError) -> Document:
        if error.code == "request_aborted":
            return self._end(self.document("cancelled"))
        return self._end(self.document("failed", error={"code": "server_error", "message": error.message}))

    def _end(self, document: Document) -> Document:
        self._ended = True
        self._keep(document)
        return document

    def _told(self, events: Iterable[Event]) -> bytes:
        frames = []
        for kind, document in events:
            frames.append(sse.named(kind, {"sequence_number": self._number, **document}))
            self._number += 1
        return b"".join(frames)


def _usage(usage: RequestUsage) -> Document:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
