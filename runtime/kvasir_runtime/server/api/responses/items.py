"""Items of a response's input: what is taken, the one form in which they are kept, and what they are in a chat.

Called by the body. Kept items are plain documents as the API shows them, so that those of an answer need no other form.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from kvasir_api.openai_errors import quoted
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.frontend.protocol.generation import not_text
from kvasir_runtime.frontend.protocol.validation import ignore
from kvasir_runtime.server.api.nullable_model import NullableModel

Item = dict[str, Any]
Id = Annotated[str, Field(min_length=1, max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(NullableModel):
    """A text of a user or of the model. Prompts are cached by their prefix alone, so marks for it change nothing."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] = Field([], exclude=True)
    logprobs: list[Any] | None = Field(None, exclude=True)
    prompt_cache_breakpoint: Any = Field(None, exclude=True)


class ReasoningPart(NullableModel):
    """A piece of reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


def _texts(value: Any) -> Any:
    """A text alone stands for one part of it, and a refusal is a text of the model."""
    if isinstance(value, str):
        return [{"type": "input_text", "text": value}]
    return [_text(part) for part in value] if isinstance(value, list) else value


def _text(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        return {"type": "output_text", "text": part.get("refusal")}
    if not isinstance(kind, str) or kind not in {"input_text", "output_text"}:
        raise not_text(part)
    return part


Texts = Annotated[list[TextPart], BeforeValidator(_texts)]


class MessageItem(NullableModel):
    """A message. phase: the purpose of an assistant's message, which no template uses."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts
    id: Id | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = Field(None, exclude=True)


class CallItem(NullableModel):
    """A call that the model made. arguments: the text of a JSON object."""

    type: Literal["function_call"]
    call_id: Id
    name: Id
    arguments: str
    id: Id | None = None
    status: Status | None = None


class CallOutputItem(NullableModel):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Id
    output: Texts
    id: Id | None = None
    status: Status | None = None


class ReasoningItem(NullableModel):
    """Earlier reasoning: its content, or else its summary. What another server encrypted cannot be read."""

    type: Literal["reasoning"]
    summary: list[ReasoningPart] = Field([])
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = Field(None, exclude=True)
    id: Id | None = None
    status: Status | None = None


class CustomCallItem(NullableModel):
    """A call of a tool that takes a text; kept as the call of a function with one argument."""

    type: Literal["custom_tool_call"]
    call_id: Id
    name: Id
    input: str
    id: Id | None = None
    status: Status | None = None


_KINDS: dict[str, TypeAdapter[Any]] = {
    "message": TypeAdapter(MessageItem),
    "function_call": TypeAdapter(CallItem),
    "function_call_output": TypeAdapter(CallOutputItem),
    "reasoning": TypeAdapter(ReasoningItem),
    "custom_tool_call": TypeAdapter(CustomCallItem),
}
_SAME: Final = {"custom_tool_call_output": "function_call_output"}
_HOSTED: Final = frozenset(
    {
        *("web_search_call", "file_search_call", "computer_call", "computer_call_output", "image_generation_call"),
        *("code_interpreter_call", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output"),
        *("apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_call", "mcp_approval_request"),
        *("mcp_approval_response", "tool_search_call", "tool_search_output", "compaction"),
    }
)
"""Items about tools of another server, which the model here was not trained with; they are left out."""


def read(value: Any, info: ValidationInfo) -> list[Item]:
    """The items of a body's input in the form in which they are kept, without ids where they came without."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("input", "must be a string or a list of items")
    found = []
    for place, item in enumerate(value):
        kind = item.get("type") if isinstance(item, dict) else None
        if isinstance(kind, str) and kind in _HOSTED:
            ignore(info, f"input[{place}]")
        else:
            found.append(_read(item, place, info))
    return found


def _read(value: Any, place: int, info: ValidationInfo) -> Item:
    kind = value.get("type") or "message" if isinstance(value, dict) else type(value).__name__
    adapter = _KINDS.get(_SAME.get(kind, kind)) if isinstance(kind, str) else None
    if adapter is None:
        told = {"kind": quoted(str(kind)), "place": place}
        raise PydanticCustomError("input", "holds at {place} an item of type {kind}, which is not supported here", told)
    given = {name: part for name, part in value.items() if part is not None}
    if kind in _SAME:
        given["type"] = _SAME[kind]
    try:
        found = _validated(adapter, given, place, info)
    except ValidationError as error:
        detail: ErrorDetails = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in (place, *detail["loc"]))[:200]
        told = {"where": where, "what": detail["msg"]}
        raise PydanticCustomError("input", "is wrong at {where}: {what}", told) from error
    item: Item = found.model_dump(exclude_none=True)
    if kind == "custom_tool_call":
        arguments = json.dumps({"input": item.pop("input")}, ensure_ascii=False)
        item |= {"type": "function_call", "arguments": arguments}
    return item


def _validated(adapter: TypeAdapter[Any], given: dict[str, Any], place: int, info: ValidationInfo) -> Any:
    """The item without unknown fields, which are named to the client. Raises ValidationError and Refused."""
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        names = validation.leave_out_unknown(error, given)
        if not names:
            raise
    for name in names:
        ignore(info, f"input[{place}].{name}")
    return adapter.validate_python(given)


def identified(items: Iterable[Item], seed: str) -> list[Item]:
    """The same as they are listed: with an id and a status each. seed: makes the ids unique."""
    prefixes = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
    return [
        {"id": f"{prefixes[item['type']]}_{seed}in{place:02x}", "status": "completed", **item, **_listed(item)}
        for place, item in enumerate(items)
    ]


def _listed(item: Item) -> dict[str, Any]:
    """Texts of the model are of another type than those of others, whatever they came as."""
    if item["type"] != "message":
        return {}
    if item["role"] == "assistant":
        return {
            "content": [{"type": "output_text", "text": part["text"], "annotations": []} for part in item["content"]]
        }
    return {"content": [{"type": "input_text", "text": part["text"]} for part in item["content"]]}


def chat_messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The messages of a chat: reasoning, text and calls of one turn are one message."""
    found: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None
    for item in items:
        message = _asked(item)
        if message is not None:
            found.append(message)
            turn = None
            continue
        if turn is None or (item["type"] == "message" and turn["content"]):
            turn = {"role": "assistant", "content": ""}
            found.append(turn)
        _add(turn, item)
    return found


def _asked(item: Item) -> dict[str, Any] | None:
    """Messages that are not the model's."""
    if item["type"] == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": _joined(item["output"])}
    if item["type"] == "message" and item["role"] != "assistant":
        return {"role": item["role"], "content": _joined(item["content"])}
    return None


def _add(turn: dict[str, Any], item: Item) -> None:
    match item["type"]:
        case "message":
            turn["content"] += _joined(item["content"])
        case "reasoning":
            thoughts = _joined(item.get("content") or item["summary"])
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thoughts
        case "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})


def _joined(parts: Sequence[Item]) -> str:
    return "".join(str(part["text"]) for part in parts)
