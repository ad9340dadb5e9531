"""Functions that a chat offers, which of them may or must be called, and calls in its history: the fields and bounds.

Part of the bodies of chats and of counting tokens. What is decided from them is in tool_choice.py.
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol.validation import StrictModel

MAX_TOOLS: Final = 512
MAX_CALLS: Final = 1024
NAMED: Final = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
    "required": ["type", "function"],
    "additionalProperties": False,
}
CHOICES: Final = [{"enum": ["none", "auto", "required", None]}, NAMED]
"""For /openapi.json; allowed_tools is taken besides."""
NAME_PATTERN: Final = r"^[A-Za-z0-9_.\-]{1,128}$"


class Function(StrictModel):
    """What may be called. parameters: a JSON schema of an object. strict: the arguments must fit it."""

    name: str = Field(pattern=NAME_PATTERN)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A function, in the form in which templates show it."""

    type: Literal["function"]
    function: Function


class CalledFunction(StrictModel):
    """A call in the history. arguments: JSON text, as it was answered."""

    name: str = Field(max_length=256)
    arguments: str = "{}"


class HistoryToolCall(StrictModel):
    """One of an assistant's calls. index: as in chunks of a stream, without effect."""

    id: str = Field("", max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ToolChoice(NamedTuple):
    """tool_choice, understood. names: the only functions that may be called, None for all. once: exactly one call."""

    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...] | None = None
    once: bool = False


def _tools(tools: list[Tool]) -> list[Tool]:
    names = [tool.function.name for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PydanticCustomError("tools", "offers {name} twice", {"name": json.dumps(twice)})
    return tools


def _choice(value: Any) -> ToolChoice:
    match value:
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case {"type": "function", "function": {"name": str(name), **more}, **rest} if not more and not rest:
            return ToolChoice("required", (name,), once=True)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            return ToolChoice(mode, tuple(map(_named, tools)))
    raise PydanticCustomError(
        "choice", 'must be "none", "auto", "required", a function by its name, or allowed_tools of such'
    )


def _named(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
    raise PydanticCustomError("choice", "must name functions in its allowed tools")


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS), AfterValidator(_tools)]
ToolChoiceField = Annotated[ToolChoice | None, PlainValidator(_choice), WithJsonSchema({"anyOf": CHOICES})]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolCalls = Annotated[list[HistoryToolCall], Field(max_length=MAX_CALLS)]


def without_empty_fields(message: dict[str, Any]) -> dict[str, Any]:
    """A message without empty fields. The content of an assistant's message with calls or reasoning may be missing.

    Raises PydanticCustomError for fields of another role.
    """
    fields = {name: value for name, value in message.items() if value is not None and value != []}
    role = fields.get("role")
    for name, owner in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
        if name in fields and role != owner:
            raise PydanticCustomError("message", f"has {name}, which only the role {owner} has")
    if role == "assistant" and fields.keys() & {"tool_calls", "reasoning", "reasoning_content"}:
        fields.setdefault("content", "")
    return fields


def check(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """Whether what is to be called is offered. Raises Refused."""
    if choice is None or (not tools and choice.mode != "required"):
        return
    offered = {tool.function.name for tool in tools}
    unknown = next((name for name in choice.names or () if name not in offered), None)
    if unknown is not None:
        message = f"`tool_choice` names {json.dumps(unknown)}, which is not among the tools."
        raise Refused(openai_errors.invalid(message, param="tool_choice", code="invalid_value"))
    if not tools or choice.names == ():
        message = "`tool_choice` requests a call, and there are no tools."
        raise Refused(openai_errors.invalid(message, param="tool_choice", code="invalid_value"))


class TemplateArguments(dict[str, Any]):
    """Arguments of a call for a template: an object for those that look into it, JSON text for those that print it."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, other: object) -> str:
        return str(self) + str(other)

    def __radd__(self, other: object) -> str:
        return str(other) + str(self)


def template_arguments(arguments: str) -> TemplateArguments | str:
    """Arguments of the history as templates need them; what is no object stays text."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return TemplateArguments(found) if isinstance(found, dict) else arguments


def template_tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    """Tools as templates know them; None for none."""
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools or ()] or None
