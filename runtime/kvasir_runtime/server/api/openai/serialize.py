"""The documents of OpenAI's answers, whole and in chunks, encoded by msgspec, and their framing as server-sent events.

Used by the streams, once per step and request: plain structs, no validation, no dictionary is built on the way.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import ChatLogprobs, TextLogprobs, TokenLabels, of_chat, of_prompt, of_text
from kvasir_runtime.server.api.openai import messages
from kvasir_runtime.server.api.openai.messages import Delta, Message
from kvasir_runtime.server.api.serializer import OutputDelta, RequestTotals
from kvasir_runtime.wire import EngineRequest

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class CachedTokens(msgspec.Struct, frozen=True):
    """Part of Usage: prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class ReasoningTokens(msgspec.Struct, frozen=True):
    """Part of Usage: tokens of the answer that were thoughts."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one request, all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens | msgspec.UnsetType = msgspec.UNSET


class ChatPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A choice in a chat chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class TextPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a completion, whole or in a chunk."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a whole chat answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Any of the four documents. usage is null in every chunk but the last where it was asked for."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatPiece] | list[TextPiece] | list[ChatChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    prompt_token_ids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET


class OpenAiSerializer:
    """The framing of completions and chats. created: unix seconds; fingerprint: of the model and build that answer."""

    stream_type = b"text/event-stream; charset=utf-8"
    keep_alive = b": waiting\n\n"

    def __init__(self, job: GenerationRequest, created: int, fingerprint: str, labels: TokenLabels) -> None:
        self._job = job
        self._made = (created, fingerprint)
        self._labels = labels
        self._chunks = Chunks(job, created, fingerprint, labels)

    def begin(self, _so_far: RequestTotals) -> bytes:
        """The roles of a chat's choices."""
        count = len(self._job.requests) if self._job.chat else 0
        return b"".join([self._chunks.role(index) for index in range(count)])

    def pieces(self, pieces: Sequence[OutputDelta]) -> bytes:
        """A chunk for each."""
        return b"".join([self._chunks.piece(piece) for piece in pieces])

    def end(self, ending: RequestTotals) -> bytes:
        """Usage if asked for, and the mark of the end."""
        return (self._chunks.usage(usage(ending)) if self._job.include_usage else b"") + DONE

    def broken(self, error: ApiError) -> bytes:
        """An error as an event, and no mark of the end."""
        return event_frame(openai_errors.body(error))

    def whole(self, pieces: Sequence[OutputDelta], ending: RequestTotals) -> bytes:
        """One document."""
        return whole(self._job, *self._made, pieces, usage(ending), self._labels)

    def refusal(self, error: ApiError) -> tuple[int, bytes, dict[str, str]]:
        """OpenAI's error."""
        return openai_errors.response(error)


class Chunks:
    """Writes the chunks of one stream. created: unix seconds; fingerprint: of the model and build that answer."""

    __slots__ = ("_answer", "_begun", "_job", "_labels")

    def __init__(self, job: GenerationRequest, created: int, fingerprint: str, labels: TokenLabels) -> None:
        self._job = job
        self._labels = labels
        self._begun: set[int] = set()
        self._answer = Answer(
            id=job.answer_id,
            object="chat.completion.chunk" if job.chat else "text_completion",
            created=created,
            model=job.model,
            system_fingerprint=fingerprint,
            choices=[],
            usage=None if job.include_usage else msgspec.UNSET,
        )

    def role(self, index: int) -> bytes:
        """The first chunk of a chat choice."""
        return self._frame([ChatPiece(index=index, delta=Delta(role="assistant", content=""))])

    def piece(self, piece: OutputDelta) -> bytes:
        """Some text, or the end of a choice, or both."""
        job = self._job
        prompt: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
        if job.token_ids and piece.index not in self._begun:
            self._begun.add(piece.index)
            prompt = job.requests[piece.index].prompt
        if not job.chat:
            return self._frame([_text_choice(job, piece, self._labels, prompt)])
        if not (piece.parts or piece.reason or piece.said or piece.ids):
            return b""  # it may still become a call
        self._answer.prompt_token_ids = prompt
        made = ChatPiece(
            index=piece.index,
            delta=messages.delta(piece.parts),
            logprobs=of_chat(piece.said, self._labels, job.logprobs) if piece.said else None,
            finish_reason=messages.reason(piece),
            token_ids=piece.ids if job.token_ids else msgspec.UNSET,
        )
        return self._frame([made])

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that carries the counts."""
        self._answer.usage = usage
        return self._frame([])

    def _frame(self, choices: list[ChatPiece] | list[TextPiece]) -> bytes:
        self._answer.choices = choices
        return b"data: " + _encode(self._answer) + b"\n\n"


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
    return _encode(
        Answer(
            id=job.answer_id,
            object="chat.completion" if job.chat else "text_completion",
            created=created,
            model=job.model,
            system_fingerprint=fingerprint,
            choices=_whole_choices(job, pieces, labels),
            usage=usage,
            prompt_token_ids=request.prompt if job.chat and job.token_ids else msgspec.UNSET,
            prompt_logprobs=_of_prompt(job, request, first, labels) if job.chat else msgspec.UNSET,
        )
    )


def _whole_choices(
    job: GenerationRequest, pieces: Sequence[OutputDelta], labels: TokenLabels
) -> list[ChatChoice] | list[TextPiece]:
    if not job.chat:
        prompts = [job.requests[piece.index // job.num_choices * job.num_drawn] for piece in pieces]
        return [
            _text_choice(
                job,
                piece,
                labels,
                request.prompt if job.token_ids else msgspec.UNSET,
                _of_prompt(job, request, piece, labels),
            )
            for piece, request in zip(pieces, prompts, strict=True)
        ]
    return [
        ChatChoice(
            index=piece.index,
            message=messages.message(piece.parts),
            logprobs=of_chat(piece.said, labels, job.logprobs) if job.logprobs >= 0 else None,
            finish_reason=messages.reason(piece),
            token_ids=piece.ids if job.token_ids else msgspec.UNSET,
        )
        for piece in pieces
    ]


def _text_choice(
    job: GenerationRequest,
    piece: OutputDelta,
    labels: TokenLabels,
    prompt_token_ids: tuple[int, ...] | msgspec.UnsetType,
    prompt_logprobs: list[Any] | msgspec.UnsetType = msgspec.UNSET,
) -> TextPiece:
    return TextPiece(
        index=piece.index,
        text=piece.text,
        logprobs=of_text(piece.said, labels, job.logprobs) if job.logprobs >= 0 else None,
        finish_reason=piece.reason,
        token_ids=piece.ids if job.token_ids else msgspec.UNSET,
        prompt_token_ids=prompt_token_ids,
        prompt_logprobs=prompt_logprobs,
    )


def _of_prompt(
    job: GenerationRequest, request: EngineRequest, piece: OutputDelta, labels: TokenLabels
) -> list[Any] | msgspec.UnsetType:
    if job.prompt_logprobs < 0:
        return msgspec.UNSET
    return of_prompt(request.prompt, piece.prompt_logprobs, labels, job.prompt_logprobs)


def usage(ending: RequestTotals) -> Usage:
    """Counts with their sum."""
    return Usage(
        prompt_tokens=ending.prompt_tokens,
        completion_tokens=ending.completion_tokens,
        total_tokens=ending.prompt_tokens + ending.completion_tokens,
        prompt_tokens_details=CachedTokens(ending.cached_tokens),
        completion_tokens_details=ReasoningTokens(ending.reasoning_tokens)
        if ending.reasoning_tokens
        else msgspec.UNSET,
    )


def event_frame(document: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + document + b"\n\n"
