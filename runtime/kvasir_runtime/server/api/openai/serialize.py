"""Writes answers of completions and chats: whole documents, or chunks as server-sent events.

Called for each step of each request: msgspec encodes plain structs, nothing is validated, no dictionary is built.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels, of_chat, of_prompt, of_text
from kvasir_runtime.frontend.output_processor import OutputDelta
from kvasir_runtime.frontend.parsing.parts import CallArguments, CallBegin, Content, Part, Reasoning, join
from kvasir_runtime.server.api import sse
from kvasir_runtime.server.api.openai.protocol import (
    AnyCompletion,
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessage,
    CompletionChoice,
    CompletionTokensDetails,
    FunctionCall,
    FunctionCallDelta,
    PromptTokensDetails,
    RequestMetricsDocument,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from kvasir_runtime.server.api.serializer import RequestUsage
from kvasir_runtime.wire import EngineRequest

DONE = b"data: [DONE]\n\n"


class OpenAiSerializer:
    """Writes one answer. created: unix seconds; fingerprint: of the model and build that answer."""

    stream_type = sse.STREAM_TYPE
    keep_alive = sse.COMMENT

    def __init__(self, request: GenerationRequest, created: int, fingerprint: str, labels: TokenLabels) -> None:
        self._request = request
        self._made = (created, fingerprint)
        self._labels = labels
        self._chunks = ChunkWriter(request, created, fingerprint, labels)

    def begin(self, so_far: RequestUsage) -> bytes:
        """The roles of a chat's choices; beams may turn out to be fewer, and have theirs with their texts."""
        count = len(self._request.requests) if self._request.chat and not self._request.is_beam_search else 0
        self._chunks.count(so_far)
        return b"".join([self._chunks.role(index) for index in range(count)])

    def deltas(self, deltas: Sequence[OutputDelta], so_far: RequestUsage | None = None) -> bytes:
        """A chunk for each."""
        self._chunks.count(so_far)
        return b"".join([self._chunks.delta(delta) for delta in deltas])

    def end(self, usage: RequestUsage) -> bytes:
        """Usage and times if requested, and the mark of the end."""
        return self._chunks.end(usage) + DONE

    def broken(self, error: ApiError) -> bytes:
        """An error as an event, and no mark of the end."""
        return sse.unnamed(openai_errors.body(error))

    def whole(self, deltas: Sequence[OutputDelta], usage: RequestUsage) -> bytes:
        """One document."""
        return whole(self._request, *self._made, deltas, usage, self._labels)

    def refusal(self, error: ApiError) -> tuple[int, bytes, dict[str, str]]:
        """OpenAI's error."""
        return openai_errors.response(error)


class ChunkWriter:
    """Writes the chunks of one stream. created: unix seconds; fingerprint: of the model and build that answer."""

    __slots__ = ("_answer", "_begun", "_labels", "_request")

    def __init__(self, request: GenerationRequest, created: int, fingerprint: str, labels: TokenLabels) -> None:
        self._request = request
        self._labels = labels
        self._begun: set[int] = set()
        self._answer = AnyCompletion(
            id=request.answer_id,
            object="chat.completion.chunk" if request.chat else "text_completion",
            created=created,
            model=request.model,
            system_fingerprint=fingerprint,
            choices=[],
            usage=None if request.include_usage else UNSET,
        )

    def role(self, index: int) -> bytes:
        """The first chunk of a chat choice."""
        return self._frame([ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))])

    def delta(self, delta: OutputDelta) -> bytes:
        """Some text, or the end of a choice, or both."""
        request = self._request
        prompt: tuple[int, ...] | UnsetType = UNSET
        if request.token_ids and delta.index not in self._begun:
            self._begun.add(delta.index)
            prompt = request.requests[delta.index].prompt
        if not request.chat:
            return self._frame([_text_choice(request, delta, self._labels, prompt)])
        if not (delta.parts or delta.reason or delta.tokens or delta.token_ids):
            return b""  # it may still become a call
        self._answer.prompt_token_ids = prompt
        made = ChatChunkChoice(
            index=delta.index,
            delta=chat_delta(delta.parts, role="assistant" if request.is_beam_search else None),
            logprobs=of_chat(delta.tokens, self._labels, request.logprobs) if delta.tokens else None,
            finish_reason=finish_reason(delta),
            stop_reason=delta.stopped_by if delta.reason is not None else UNSET,
            token_ids=delta.token_ids if request.token_ids else UNSET,
        )
        return self._frame([made])

    def count(self, so_far: RequestUsage | None) -> None:
        """The counts that the next chunks carry, where each does."""
        if so_far is not None and self._request.include_usage and self._request.continuous_usage:
            self._answer.usage = usage_document(so_far)

    def end(self, usage: RequestUsage) -> bytes:
        """The chunk without choices that carries counts and times, where they are requested."""
        request = self._request
        if not (request.include_usage or request.include_metrics):
            return b""
        if request.include_usage:
            self._answer.usage = usage_document(usage)
        if request.include_metrics:
            self._answer.metrics = metrics_document(usage)
        return self._frame([])

    def _frame(self, choices: list[ChatChunkChoice] | list[CompletionChoice]) -> bytes:
        self._answer.choices = choices
        return sse.unnamed(sse.encode(self._answer))


def whole(
    request: GenerationRequest,
    created: int,
    fingerprint: str,
    deltas: Sequence[OutputDelta],
    usage: RequestUsage,
    labels: TokenLabels,
) -> bytes:
    """The document of an answer that is not streamed. pieces: whole choices, in the order of their index."""
    engine_request, first = request.requests[0], deltas[0]
    return sse.encode(
        AnyCompletion(
            id=request.answer_id,
            object="chat.completion" if request.chat else "text_completion",
            created=created,
            model=request.model,
            system_fingerprint=fingerprint,
            choices=_whole_choices(request, deltas, labels),
            usage=usage_document(usage),
            prompt_token_ids=(engine_request.prompt if request.token_ids else None) if request.chat else UNSET,
            prompt_logprobs=_of_prompt(request, engine_request, first, labels) if request.chat else UNSET,
            metrics=metrics_document(usage) if request.include_metrics else UNSET,
        )
    )


def _whole_choices(
    request: GenerationRequest, deltas: Sequence[OutputDelta], labels: TokenLabels
) -> list[ChatChoice] | list[CompletionChoice]:
    if not request.chat:
        prompts = [request.requests[delta.index // request.num_choices * request.num_drawn] for delta in deltas]
        return [
            _text_choice(
                request,
                delta,
                labels,
                engine_request.prompt if request.token_ids else None,
                _of_prompt(request, engine_request, delta, labels),
            )
            for delta, engine_request in zip(deltas, prompts, strict=True)
        ]
    return [
        ChatChoice(
            index=delta.index,
            message=message(delta.parts),
            logprobs=of_chat(delta.tokens, labels, request.logprobs) if request.logprobs >= 0 else None,
            finish_reason=finish_reason(delta),
            stop_reason=delta.stopped_by,
            token_ids=delta.token_ids if request.token_ids else None,
        )
        for delta in deltas
    ]


def _text_choice(
    request: GenerationRequest,
    delta: OutputDelta,
    labels: TokenLabels,
    prompt_token_ids: tuple[int, ...] | UnsetType | None,
    prompt_logprobs: list[Any] | UnsetType | None = UNSET,
) -> CompletionChoice:
    """Whole where the prompt's fields are given, which are null then where they were not requested."""
    is_whole = prompt_logprobs is not UNSET
    return CompletionChoice(
        index=delta.index,
        text=delta.text,
        logprobs=of_text(delta.tokens, labels, request.logprobs) if request.logprobs >= 0 else None,
        finish_reason=delta.reason,
        stop_reason=delta.stopped_by if is_whole or delta.reason is not None else UNSET,
        token_ids=delta.token_ids if request.token_ids else None if is_whole else UNSET,
        prompt_token_ids=prompt_token_ids,
        prompt_logprobs=prompt_logprobs,
    )


def _of_prompt(
    request: GenerationRequest, engine_request: EngineRequest, delta: OutputDelta, labels: TokenLabels
) -> list[Any] | None:
    if request.prompt_logprobs < 0:
        return None
    return of_prompt(engine_request.prompt, delta.prompt_logprobs, labels, request.prompt_logprobs)


def usage_document(usage: RequestUsage) -> Usage:
    """Counts with their sum."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(usage.reasoning_tokens) if usage.reasoning_tokens else UNSET,
    )


def metrics_document(usage: RequestUsage) -> RequestMetricsDocument:
    """The times of an answer, in milliseconds."""
    gaps = usage.completion_tokens - 1
    decoded = usage.answer_s > 0 and gaps > 0
    return RequestMetricsDocument(
        time_to_first_token_ms=_ms(usage.first_token_s),
        generation_time_ms=_ms(usage.answer_s),
        queue_time_ms=_ms(usage.queue_s),
        mean_itl_ms=_ms(usage.answer_s / gaps) if decoded else None,
        tokens_per_second=round(gaps / usage.answer_s, 3) if decoded else None,
    )


def _ms(seconds: float) -> float | None:
    return None if seconds < 0 else round(seconds * 1000, 3)


def chat_delta(parts: Iterable[Part], *, role: str | None = None) -> ChatDelta:
    """All parts of one piece together. A broken call stays as it was sent: a stream cannot take it back."""
    content, thoughts = "", ""
    calls: dict[int, ToolCallDelta] = {}
    for part in parts:
        match part:
            case Content(text):
                content += text
            case Reasoning(text):
                thoughts += text
            case CallBegin(index, call_id, name):
                calls[index] = ToolCallDelta(index, FunctionCallDelta(name, ""), call_id, "function")
            case CallArguments(index, text):
                call = calls.setdefault(index, ToolCallDelta(index, FunctionCallDelta()))
                call.function.arguments = (call.function.arguments or "") + text
    return ChatDelta(
        role=role,
        content=content or None,
        reasoning_content=thoughts or None,
        reasoning=thoughts or None,
        tool_calls=[*calls.values()] if calls else UNSET,
    )


def message(parts: Iterable[Part]) -> ChatMessage:
    """The whole answer; content is null if there is only reasoning or calls."""
    found = join(parts)
    calls = [ToolCall(id=call.call_id, function=FunctionCall(call.name, call.arguments)) for call in found.calls]
    return ChatMessage(
        content=None if not found.content and (calls or found.reasoning) else found.content,
        reasoning_content=found.reasoning or UNSET,
        reasoning=found.reasoning or None,
        tool_calls=calls or UNSET,
    )


def finish_reason(delta: OutputDelta) -> str | None:
    """OpenAI's finish reason: an answer that ended with calls has tool_calls."""
    return "tool_calls" if delta.called and delta.reason == "stop" else delta.reason
