"""The parts of a chat's answer as OpenAI's documents write them: the delta of a chunk, and the whole message.

Used by the answers. Thoughts stand under both names that clients of vLLM look for, reasoning_content and reasoning.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from kvasir_runtime.frontend.parsing.parts import CallArguments, CallBegin, Content, Part, Reasoning, join
from kvasir_runtime.server.api.serializer import OutputDelta


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    """A piece of a call: its name, or some of its arguments, or both."""

    name: str | None = None
    arguments: str | None = None


class CallDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to a call; id and type only in the first."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a chat message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | UnsetType = UNSET


class FunctionCall(msgspec.Struct, frozen=True):
    """What to call. arguments: JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A whole call."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


def delta(parts: Iterable[Part]) -> Delta:
    """All parts of one piece together. A call that broke stays as it was told: a stream takes nothing back."""
    content, thoughts = "", ""
    calls: dict[int, CallDelta] = {}
    for part in parts:
        match part:
            case Content(text):
                content += text
            case Reasoning(text):
                thoughts += text
            case CallBegin(index, call_id, name):
                calls[index] = CallDelta(index, FunctionDelta(name, ""), call_id, "function")
            case CallArguments(index, text):
                call = calls.setdefault(index, CallDelta(index, FunctionDelta()))
                call.function.arguments = (call.function.arguments or "") + text
    return Delta(
        content=content or None,
        reasoning_content=thoughts or None,
        reasoning=thoughts or None,
        tool_calls=[*calls.values()] if calls else UNSET,
    )


def message(parts: Iterable[Part]) -> Message:
    """The whole answer; without a content where there are only thoughts or calls."""
    found = join(parts)
    calls = [ToolCall(id=call.call_id, function=FunctionCall(call.name, call.arguments)) for call in found.calls]
    thoughts = found.reasoning or UNSET
    return Message(
        content=None if not found.content and (calls or found.reasoning) else found.content,
        reasoning_content=thoughts,
        reasoning=thoughts,
        tool_calls=calls or UNSET,
    )


def reason(piece: OutputDelta) -> str | None:
    """OpenAI's finish reason: an answer that ended with calls asks to make them."""
    return "tool_calls" if piece.called and piece.reason == "stop" else piece.reason
