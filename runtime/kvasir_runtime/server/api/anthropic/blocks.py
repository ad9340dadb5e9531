"""Blocks of Anthropic's messages, and what they are in a chat.

Called by the body. A user's message may hold results of tools between its texts: each becomes a message of its own.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from kvasir_runtime.frontend.protocol.generation import not_text
from kvasir_runtime.frontend.protocol.validation import ignore
from kvasir_runtime.server.api.nullable_model import NullableModel

Chat = dict[str, Any]
Ignored = Annotated[Any, Field(exclude=True)]
"""Prompts are cached by their prefix alone, so marks for caching change nothing."""


def _blocks(value: Any) -> Any:
    """A text alone stands for one block of it."""
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


def _texts(value: Any) -> Any:
    """Blocks of text alone."""
    value = _blocks(value)
    for block in value if isinstance(value, list) else ():
        if isinstance(block, dict) and block.get("type") != "text":
            raise not_text(block)
    return value


class TextBlock(NullableModel):
    """A text."""

    type: Literal["text"]
    text: str
    cache_control: Ignored = None
    citations: Ignored = None


class ThinkingBlock(NullableModel):
    """Earlier reasoning of the model. signature: ours are empty, so it is not checked."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(NullableModel):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1, max_length=256)
    name: str = Field(min_length=1, max_length=256)
    input: dict[str, Any]
    cache_control: Ignored = None


Texts = Annotated[list[TextBlock], BeforeValidator(_texts)]


class ToolResultBlock(NullableModel):
    """The result of a call. is_error: it failed; the text for the model begins with Error."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1, max_length=256)
    content: Texts = Field([])
    is_error: bool = False
    cache_control: Ignored = None


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
KINDS: Final = ("text", "thinking", "tool_use", "tool_result")
HOSTED: Final = ("server_tool_use", "redacted_thinking")
"""Blocks about Anthropic's own tools, and reasoning that only it can read; also all that end in _tool_result."""


def _readable(value: Any, info: ValidationInfo) -> Any:
    """Blocks without those that the model here could make nothing of."""
    value = _blocks(value)
    if not isinstance(value, list):
        return value
    kept = []
    for block in value:
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and (kind in HOSTED or kind.endswith("_tool_result")):
            ignore(info, f"messages.{kind}")
        elif isinstance(block, dict) and kind not in KINDS:
            raise not_text(block)
        else:
            kept.append(block)
    value[:] = kept  # in its place, so that a later error names the right one
    return value


Blocks = Annotated[list[Block], BeforeValidator(_readable)]


class InputMessage(NullableModel):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


def joined(blocks: Sequence[TextBlock]) -> str:
    """The text of blocks."""
    return "".join(block.text for block in blocks)


def chat_messages(turns: Sequence[InputMessage]) -> list[Chat]:
    """The messages of a chat."""
    found: list[Chat] = []
    for turn in turns:
        found += [_answered(turn)] if turn.role == "assistant" else _asked(turn)
    return found


def _answered(turn: InputMessage) -> Chat:
    said: Chat = {"role": "assistant", "content": joined([b for b in turn.content if isinstance(b, TextBlock)])}
    thoughts = "".join(block.thinking for block in turn.content if isinstance(block, ThinkingBlock))
    calls = [_call(block) for block in turn.content if isinstance(block, ToolUseBlock)]
    return said | ({"reasoning_content": thoughts} if thoughts else {}) | ({"tool_calls": calls} if calls else {})


def _call(block: ToolUseBlock) -> Chat:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _asked(turn: InputMessage) -> list[Chat]:
    found: list[Chat] = []
    for block in turn.content:
        if isinstance(block, ToolResultBlock):
            text = ("Error: " if block.is_error else "") + joined(block.content)
            found.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": text})
        elif isinstance(block, TextBlock):
            if found and found[-1]["role"] == turn.role:
                found[-1]["content"] += block.text
            else:
                found.append({"role": turn.role, "content": block.text})
    return found or [{"role": turn.role, "content": ""}]
