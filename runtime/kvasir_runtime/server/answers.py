"""The documents of OpenAI's answers, whole and in chunks, encoded by msgspec, and their framing as server-sent events.

Used by the streams, once per step and request: plain structs, no validation, no dictionary is built on the way.
"""

from typing import Literal

import msgspec

from kvasir_runtime.server.prepare import Job
from kvasir_runtime.wire import FinishReason

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class CachedTokens(msgspec.Struct, frozen=True):
    """Part of Usage: prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one request, all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a chat message."""

    role: str | None = None
    content: str | None = None


class ChatPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A choice in a chat chunk."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None


class TextPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a completion, whole or in a chunk."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat message."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a whole chat answer."""

    index: int
    message: Message
    logprobs: None = None
    finish_reason: str


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Any of the four documents. usage is null in every chunk but the last where it was asked for."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatPiece] | list[TextPiece] | list[ChatChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class Chunks:
    """Writes the chunks of one stream. created: unix seconds; fingerprint: of the model and build that answer."""

    __slots__ = ("_answer", "_chat")

    def __init__(self, job: Job, created: int, fingerprint: str) -> None:
        self._chat = job.chat
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

    def text(self, index: int, text: str, finish_reason: FinishReason | None) -> bytes:
        """Some text, or the end of a choice, or both."""
        if self._chat:
            delta = Delta(content=text) if text else Delta()
            return self._frame([ChatPiece(index=index, delta=delta, finish_reason=finish_reason)])
        return self._frame([TextPiece(index=index, text=text, finish_reason=finish_reason)])

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that carries the counts."""
        self._answer.usage = usage
        return self._frame([])

    def _frame(self, choices: list[ChatPiece] | list[TextPiece]) -> bytes:
        self._answer.choices = choices
        return b"data: " + _encode(self._answer) + b"\n\n"


def whole(job: Job, created: int, fingerprint: str, choices: list[tuple[str, FinishReason]], usage: Usage) -> bytes:
    """The document of an answer that is not streamed. choices: text and reason, by index."""
    made: list[ChatChoice] | list[TextPiece]
    if job.chat:
        made = [
            ChatChoice(index=index, message=Message(content=text), finish_reason=reason)
            for index, (text, reason) in enumerate(choices)
        ]
    else:
        made = [TextPiece(index=index, text=text, finish_reason=reason) for index, (text, reason) in enumerate(choices)]
    return _encode(
        Answer(
            id=job.answer_id,
            object="chat.completion" if job.chat else "text_completion",
            created=created,
            model=job.model,
            system_fingerprint=fingerprint,
            choices=made,
            usage=usage,
        )
    )


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> Usage:
    """Counts with their sum."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=CachedTokens(cached_tokens),
    )


def event_frame(document: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + document + b"\n\n"
