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

    def __init__(self, job: GenerationRequest, created: int, fingerprint: str, labels: TokenLabels) -> None:
        self._job = job
        self._made = (created, fingerprint)
        self._labels = labels
        self._chunks = ChunkWriter(job, created, fingerprint, labels)

    def begin(self, _so_far: RequestUsage) -> bytes:
        """The roles of a chat's choices."""
        count = len(self._job.requests) if self._job.chat else 0
        return b"".join([self._chunks.role(index) for index in range(count)])

    def pieces(self, pieces: Sequence[OutputDelta]) -> bytes:
        """A chunk for each."""
        return b"".join([self._chunks.piece(piece) for piece in pieces])

    def end(self, ending: RequestUsage) -> bytes:
        """Usage if asked for, and the mark of the end."""
        return (self._chunks.usage(usage(ending)) if self._job.include_usage else b"") + DONE

    def broken(self, error: ApiError) -> bytes:
        """An error as an event, and no mark of the end."""
        return sse.unnamed(openai_errors.body(error))

    def whole(self, pieces: Sequence[OutputDelta], ending: RequestUsage) -> bytes:
        """One document."""
        return whole(self._job, *self._made, pieces, usage(ending), self._labels)

    def refusal(self, error: ApiError) -> tuple[int, bytes, dict[str, str]]:
        """OpenAI's error."""
        return openai_errors.response(error)


class ChunkWriter:
    """Writes the chunks of one stream. created: unix seconds; fingerprint: of the model and build that answer."""

    __slots__ = ("_answer", "_begun", "_job", "_labels")

    def __init__(self, job: GenerationRequest, created: int, fingerprint: str, labels: TokenLabels) -> None:
        self._job = job
        self._labels = labels
        self._begun: set[int] = set()
        self._answer = AnyCompletion(
            id=job.answer_id,
            object="chat.completion.chunk" if job.chat else "text_completion",
            created=created,
            model=job.model,
            system_fingerprint=fingerprint,
            choices=[],
            usage=None if job.include_usage else UNSET,
        )

    def role(self, index: int) -> bytes:
        """The first chunk of a chat choice."""
        return self._frame([ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content=""))])

    def piece(self, piece: OutputDelta) -> bytes:
        """Some text, or the end of a choice, or both."""
        job = self._job
        prompt: tuple[int, ...] | UnsetType = UNSET
        if job.token_ids and piece.index not in self._begun:
            self._begun.add(piece.index)
            prompt = job.requests[piece.index].prompt
        if not job.chat:
            return self._frame([_text_choice(job, piece, self._labels, prompt)])
        if not (piece.parts or piece.reason or piece.said or piece.ids):
            return b""  # it may still become a call
        self._answer.prompt_token_ids = prompt
        made = ChatChunkChoice(
            index=piece.index,
            delta=delta(piece.parts),
            logprobs=of_chat(piece.said, self._labels, job.logprobs) if piece.said else None,
            finish_reason=finish_reason(piece),
            token_ids=piece.ids if job.token_ids else UNSET,
        )
        return self._frame([made])

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that carries the counts."""
        self._answer.usage = usage
        return self._frame([])

    def _frame(self, choices: list[ChatChunkChoice] | list[CompletionChoice]) -> bytes:
        self._answer.choices = choices
        return sse.unnamed(sse.encode(self._answer))


def whole(
    job: GenerationRequest,
    created: int,
    fingerprint: str,
    pieces: Sequence[OutputDelta],
    usage: Usage,
    labels: TokenLabels,
) -> bytes:
    """The document of an answer that is not streamed. pieces: whole choices, in the order of their index."""
    request, first = job.requests[0], pieces[0]
    return sse.encode(
        AnyCompletion(
            id=job.answer_id,
            object="chat.completion" if job.chat else "text_completion",
            created=created,
            model=job.model,
            system_fingerprint=fingerprint,
            choices=_whole_choices(job, pieces, labels),
            usage=usage,
            prompt_token_ids=request.prompt if job.chat and job.token_ids else UNSET,
            prompt_logprobs=_of_prompt(job, request, first, labels) if job.chat else UNSET,
        )
    )


def _whole_choices(
    job: GenerationRequest, pieces: Sequence[OutputDelta], labels: TokenLabels
) -> list[ChatChoice] | list[CompletionChoice]:
    if not job.chat:
        prompts = [job.requests[piece.index // job.num_choices * job.num_drawn] for piece in pieces]
        return [
            _text_choice(
                job,
                piece,
                labels,
                request.prompt if job.token_ids else UNSET,
                _of_prompt(job, request, piece, labels),
            )
            for piece, request in zip(pieces, prompts, strict=True)
        ]
    return [
        ChatChoice(
            index=piece.index,
            message=message(piece.parts),
            logprobs=of_chat(piece.said, labels, job.logprobs) if job.logprobs >= 0 else None,
            finish_reason=finish_reason(piece),
            token_ids=piece.ids if job.token_ids else UNSET,
        )
        for piece in pieces
    ]


def _text_choice(
    job: GenerationRequest,
    piece: OutputDelta,
    labels: TokenLabels,
    prompt_token_ids: tuple[int, ...] | UnsetType,
    prompt_logprobs: list[Any] | UnsetType = UNSET,
) -> CompletionChoice:
    return CompletionChoice(
        index=piece.index,
        text=piece.text,
        logprobs=of_text(piece.said, labels, job.logprobs) if job.logprobs >= 0 else None,
        finish_reason=piece.reason,
        token_ids=piece.ids if job.token_ids else UNSET,
        prompt_token_ids=prompt_token_ids,
        prompt_logprobs=prompt_logprobs,
    )


def _of_prompt(
    job: GenerationRequest, request: EngineRequest, piece: OutputDelta, labels: TokenLabels
) -> list[Any] | UnsetType:
    if job.prompt_logprobs < 0:
        return UNSET
    return of_prompt(request.prompt, piece.prompt_logprobs, labels, job.prompt_logprobs)


def usage(ending: RequestUsage) -> Usage:
    """Counts with their sum."""
    return Usage(
        prompt_tokens=ending.prompt_tokens,
        completion_tokens=ending.completion_tokens,
        total_tokens=ending.prompt_tokens + ending.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(ending.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(ending.reasoning_tokens)
        if ending.reasoning_tokens
        else UNSET,
    )


def delta(parts: Iterable[Part]) -> ChatDelta:
    """All parts of one piece together. A call that broke stays as it was told: a stream takes nothing back."""
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
        content=content or None,
        reasoning_content=thoughts or None,
        reasoning=thoughts or None,
        tool_calls=[*calls.values()] if calls else UNSET,
    )


def message(parts: Iterable[Part]) -> ChatMessage:
    """The whole answer; without a content where there are only thoughts or calls."""
    found = join(parts)
    calls = [ToolCall(id=call.call_id, function=FunctionCall(call.name, call.arguments)) for call in found.calls]
    thoughts = found.reasoning or UNSET
    return ChatMessage(
        content=None if not found.content and (calls or found.reasoning) else found.content,
        reasoning_content=thoughts,
        reasoning=thoughts,
        tool_calls=calls or UNSET,
    )


def finish_reason(piece: OutputDelta) -> str | None:
    """OpenAI's finish reason: an answer that ended with calls asks to make them."""
    return "tool_calls" if piece.called and piece.reason == "stop" else piece.reason
