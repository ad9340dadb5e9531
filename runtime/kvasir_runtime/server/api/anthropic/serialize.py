"""How an answer is written on `/v1/messages`: a message of blocks, or the events that build one block after the other.

Made for each answer by the routes. Anthropic's order: message_start, then for each block start, deltas and stop, then
message_delta with the reason and the counts, message_stop. Exactly one block is open at a time.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from kvasir_api import http_apis
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.frontend.generation_request import GenerationRequest
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
    join,
)
from kvasir_runtime.server.api import sse
from kvasir_runtime.server.api.serializer import RequestUsage, answer_parts

PING: Final = sse.named("ping", {})
Document = dict[str, Any]


class MessagesSerializer:
    """max_tokens: of the request. shows_thinking: false leaves thinking blocks empty."""

    stream_type = sse.STREAM_TYPE
    keep_alive = PING

    def __init__(self, request: GenerationRequest, *, max_tokens: int, shows_thinking: bool = True) -> None:
        self._request = request
        self._max_tokens = max_tokens
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: str = ""
        self._last = OutputDelta(index=0)

    def begin(self, so_far: RequestUsage, /) -> bytes:
        """The message without its content."""
        return sse.named("message_start", {"message": self._message([], so_far)}) + PING

    def deltas(self, deltas: Sequence[OutputDelta], _so_far: RequestUsage | None = None) -> bytes:
        """Events of all parts."""
        frames: list[bytes] = []
        for delta in deltas:
            for part in answer_parts(delta, self._request):
                frames += self._part(part)
            if delta.reason is not None:
                self._last = delta
        return b"".join(frames)

    def end(self, usage: RequestUsage) -> bytes:
        """The last block's end, the reason and the counts."""
        reason = self._reason(self._last, usage)
        # A message has at least one block, also without output of the model.
        frames = [*([] if self._index >= 0 else self._start("text", {"type": "text", "text": ""})), *self._stop()]
        frames.append(sse.named("message_delta", {"delta": reason, "usage": _usage(usage)}))
        return b"".join([*frames, sse.named("message_stop", {})])

    def broken(self, error: ApiError) -> bytes:
        """An error as an event; the stream ends after it."""
        return b"event: error\ndata: " + http_apis.error_body(error, "anthropic") + b"\n\n"

    def whole(self, deltas: Sequence[OutputDelta], usage: RequestUsage) -> bytes:
        """One message."""
        (delta,) = deltas
        joined = join(answer_parts(delta, self._request))
        blocks: list[Document] = []
        if joined.reasoning:
            blocks.append({"type": "thinking", "thinking": self._thought(joined.reasoning), "signature": ""})
        if joined.content or not joined.calls:
            blocks.append({"type": "text", "text": joined.content})
        blocks += [
            {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.input} for call in joined.calls
        ]
        reason = self._reason(delta, usage)
        return sse.encode(self._message(blocks, usage) | reason)

    def refusal(self, error: ApiError) -> tuple[int, bytes, dict[str, str]]:
        """Anthropic's error."""
        return http_apis.error_response(error, http_apis.ANTHROPIC)

    def _message(self, blocks: list[Document], usage: RequestUsage) -> Document:
        return {
            "id": self._request.answer_id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def _part(self, part: Part) -> Iterable[bytes]:
        match part:
            case Content(text):
                yield from self._text(text)
            case Reasoning(text):
                if self._open != "thinking":
                    yield from self._stop()
                    yield from self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                if self._shows_thinking:
                    yield self._delta({"type": "thinking_delta", "thinking": text})
            case CallBegin(_, call_id, name):
                yield from self._stop()
                yield from self._start("tool_use", {"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case CallEnd():
                yield from self._stop()
            case CallBroken() | CallCut():
                yield from self._stop()  # what was sent of it stays: a stream cannot take it back

    def _text(self, text: str) -> Iterable[bytes]:
        if self._open != "text":
            yield from self._stop()
            yield from self._start("text", {"type": "text", "text": ""})
        yield self._delta({"type": "text_delta", "text": text})

    def _start(self, kind: str, block: Document) -> Iterable[bytes]:
        self._open = kind
        self._index += 1
        yield sse.named("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, delta: Document) -> bytes:
        return sse.named("content_block_delta", {"index": self._index, "delta": delta})

    def _stop(self) -> Iterable[bytes]:
        if self._open:
            self._open = ""
            yield sse.named("content_block_stop", {"index": self._index})

    def _thought(self, text: str) -> str:
        return text if self._shows_thinking else ""

    def _reason(self, delta: OutputDelta, usage: RequestUsage) -> Document:
        """stop_reason and stop_sequence."""
        if delta.reason == "length":
            cut = usage.completion_tokens < self._max_tokens
            return _stopped("model_context_window_exceeded" if cut else "max_tokens")
        if isinstance(delta.stopped_by, str):
            return _stopped("stop_sequence", delta.stopped_by)
        return _stopped("tool_use" if delta.called else "end_turn")


def _stopped(reason: str, sequence: str | None = None) -> Document:
    return {"stop_reason": reason, "stop_sequence": sequence}


def _usage(usage: RequestUsage) -> Document:
    """Anthropic counts cached tokens apart from the others; nothing is billed for being written into the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
