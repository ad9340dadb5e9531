"""How an answer is written on `/api/chat` and `/api/generate`: one document, or a line of JSON for each step.

Made for each answer by the routes. Calls are told when they are complete, so one that broke is told as text. Times are
those that were measured, in nanoseconds; a model that serves is loaded, so loading took none.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from kvasir_api import http_apis
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels, of_chat
from kvasir_runtime.frontend.output_processor import OutputDelta
from kvasir_runtime.frontend.parsing.parts import (
    CallArguments,
    CallBegin,
    CallBroken,
    CallCut,
    CallEnd,
    Content,
    Part,
    Reasoning,
    ToolCall,
)
from kvasir_runtime.server.api.serializer import RequestUsage, answer_parts
from kvasir_runtime.server.api.sse import encode

Document = dict[str, Any]


def head(model: str, created: int) -> Document:
    """What every document begins with. created: unix seconds."""
    return {"model": model, "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def message_fields(text: str, thoughts: str, calls: Sequence[Document], *, chat: bool) -> Document:
    """A message, or a piece of one, in either API's fields."""
    thinking = {"thinking": thoughts} if thoughts else {}
    tools = {"tool_calls": list(calls)} if calls else {}
    if chat:
        return {"message": {"role": "assistant", "content": text, **thinking, **tools}}
    return {"response": text, **thinking, **tools}


class OllamaSerializer:
    """model: as the client named it. chat: of `/api/chat`; the other API has its text elsewhere."""

    stream_type = b"application/x-ndjson"

    def __init__(
        self, request: GenerationRequest, created: int, labels: TokenLabels, *, model: str, chat: bool
    ) -> None:
        self._request = request
        self._labels = labels
        self._head = head(model, created)
        self._chat = chat
        # Every line must be a document, so the sign of life is one without text.
        self.keep_alive = encode(self._head | message_fields("", "", [], chat=chat) | {"done": False}) + b"\n"
        self._calls: dict[int, ToolCall] = {}
        self._reason = "stop"

    def begin(self, _so_far: RequestUsage) -> bytes:
        """Nothing: every line stands for itself."""
        return b""

    def deltas(self, deltas: Sequence[OutputDelta], _so_far: RequestUsage | None = None) -> bytes:
        """A line for each that is not empty."""
        return b"".join([self._line(delta) for delta in deltas])

    def end(self, usage: RequestUsage) -> bytes:
        """The line with the counts."""
        return encode(self._head | message_fields("", "", [], chat=self._chat) | self._counts(usage)) + b"\n"

    def broken(self, error: ApiError) -> bytes:
        """An error as the last line."""
        return http_apis.error_body(error, "ollama") + b"\n"

    def whole(self, deltas: Sequence[OutputDelta], usage: RequestUsage) -> bytes:
        """One document."""
        (delta,) = deltas
        document = self._document(delta) or self._head | message_fields("", "", [], chat=self._chat)
        return encode(document | self._counts(usage))

    def refusal(self, error: ApiError) -> tuple[int, bytes, dict[str, str]]:
        """Ollama's error."""
        return http_apis.error_response(error, http_apis.OLLAMA)

    def _line(self, delta: OutputDelta) -> bytes:
        document = self._document(delta)
        return encode(document | {"done": False}) + b"\n" if document else b""

    def _document(self, delta: OutputDelta) -> Document:
        """The document of a delta; {} for an empty one."""
        text, thoughts = "", ""
        calls: list[Document] = []
        for part in answer_parts(delta, self._request):
            match part:
                case Content(more):
                    text += more
                case Reasoning(more):
                    thoughts += more
                case CallBroken(index, raw):
                    self._calls.pop(index, None)
                    text += raw
                case _:
                    calls += self._called(part)
        if delta.reason is not None:
            self._reason = delta.reason
        logprobs = of_chat(delta.tokens, self._labels, self._request.logprobs).content if delta.tokens else []
        if not (text or thoughts or calls or logprobs):
            return {}
        document = self._head | message_fields(text, thoughts, calls, chat=self._chat)
        return document | ({"logprobs": logprobs} if logprobs else {})

    def _called(self, part: Part) -> list[Document]:
        """The call that is complete with this part."""
        match part:
            case CallBegin(index, call_id, name):
                self._calls[index] = ToolCall(call_id, name, "")
            case CallArguments(index, text):
                self._calls[index].arguments += text
            case CallEnd(index) | CallCut(index):
                call = self._calls.pop(index)
                function = {"index": index, "name": call.name, "arguments": call.input}
                return [{"id": call.call_id, "function": function}]
        return []

    def _counts(self, usage: RequestUsage) -> Document:
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": _ns(usage.total_s),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _ns(usage.prompt_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": _ns(usage.answer_s),
        }


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
