"""Bodies of `/v1/responses`: fields and bounds, the same as a chat, and what the answer repeats.

Called in a worker thread. Parts that only OpenAI's own service can act on are left out and named to the client.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from kvasir_runtime.frontend.protocol.generation import ChatSwitches
from kvasir_runtime.frontend.protocol.ignored_fields import hint, only
from kvasir_runtime.frontend.protocol.sampling_fields import MAX_COUNT, MAX_LOGPROBS
from kvasir_runtime.frontend.protocol.validation import StrictModel, ignore
from kvasir_runtime.server.api import translation
from kvasir_runtime.server.api.nullable_model import NullableModel
from kvasir_runtime.server.api.responses import items
from kvasir_runtime.server.api.responses.items import Id, Item
from kvasir_runtime.wire import SamplingConfig

MAX_INPUT: Final = 16_384
LOGPROBS: Final = "message.output_text.logprobs"
LABELS: Final = frozenset(
    {"user", "safety_identifier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
)
HARMLESS: Final = {
    "access_programs": hint(),
    "client_metadata": hint(),
    "context_management": hint([]),
    "conversation": only(),
    "image": hint(),
    "max_tool_calls": hint(),
    "moderation": hint(),
    "prompt": only(),
    "service_tier": hint("auto", "default"),
}
NAMES: Final = {
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
}


def _without_effect(name: str, *harmless: str) -> BeforeValidator:
    """Of a text that changes nothing here: any but the harmless ones is named to the client."""

    def noted(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and value not in harmless:
            ignore(info, name)
            return None
        return value

    return BeforeValidator(noted, json_schema_input_type=str | None)


class FunctionTool(NullableModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        """As a chat has it."""
        return {"type": "function", "function": self.model_dump(exclude_none=True, exclude={"type"})}


class NamedTool(NullableModel):
    """A function by its name."""

    type: Literal["function"]
    name: str


class AllowedTools(NullableModel):
    """Some of the tools, of which any may or one must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1)


def _kind(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else "mode" if isinstance(value, str) else None
    return kind if isinstance(kind, str) and kind in {"mode", "function", "allowed_tools"} else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedTool, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(
        _kind,
        custom_error_type="tool_choice",
        custom_error_message="must be none, auto, required, a function or allowed_tools",
    ),
]


class Format(NullableModel):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_its_fields(self) -> "Format":
        if self.type == "json_schema" and (self.name is None or self.schema_ is None):
            raise PydanticCustomError("format", "needs name and schema with the type json_schema")
        return self

    def as_chat(self) -> dict[str, Any]:
        """As a chat has it."""
        if self.type != "json_schema":
            return {"type": self.type}
        given = self.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        return {"type": "json_schema", "json_schema": given}


class Text(NullableModel):
    """How the answer is written. verbosity: models here know none."""

    format: Format = Format()
    verbosity: Annotated[str | None, _without_effect("text.verbosity", "medium")] = None


class Reasoning(NullableModel):
    """How much the model reasons. There are no summaries: an item carries the reasoning itself."""

    effort: str | None = Field(None, max_length=16)
    summary: Annotated[str | None, _without_effect("reasoning.summary")] = None
    generate_summary: Annotated[str | None, _without_effect("reasoning.generate_summary")] = None


class StreamOptions(NullableModel):
    """include_obfuscation: nothing is padded here, so only false is accepted."""

    include_obfuscation: Literal[False] = False


def _functions(value: Any, info: ValidationInfo) -> Any:
    """Only the functions among the tools: those of other types run at OpenAI, or are no calls with arguments."""
    return translation.tools_of_type("function", value, info)


def _included(value: Any, info: ValidationInfo) -> Any:
    """Only what can be included; reasoning is never encrypted here, and there are no tools of OpenAI's."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return value
    for name in value:
        if name != LOGPROBS:
            ignore(info, f"include.{name}")
    return [name for name in value if name == LOGPROBS]


def _metadata(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) > 16 or not all(isinstance(text, str) for text in value.values()):
        raise PydanticCustomError("metadata", "must be an object of at most 16 texts")
    if any(len(name) > 64 or len(text) > 512 for name, text in value.items()):
        raise PydanticCustomError("metadata", "has a name of over 64 or a text of over 512 characters")
    return value


class InputBody(StrictModel):
    """What shapes the prompt; the body of `/v1/responses/input_tokens`."""

    model: str | None = Field(None, max_length=512)
    input: Annotated[list[Item], BeforeValidator(items.read), Field(max_length=MAX_INPUT)]
    instructions: str | None = None
    previous_response_id: Id | None = None
    tools: Annotated[list[FunctionTool], BeforeValidator(_functions)] = Field([], max_length=1024)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    text: Text = Text()
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    chat_template_kwargs: ChatSwitches = Field({})

    def as_chat(self, conversation: Sequence[Item]) -> dict[str, Any]:
        """The same as a chat's body. conversation: its input, after that of the response that it goes on with."""
        messages = items.chat_messages(conversation)
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        document: dict[str, Any] = {"model": self.model, "messages": messages}
        document |= self._tools()
        if self.text.format.type != "text":
            document["response_format"] = self.text.format.as_chat()
        if self.chat_template_kwargs:
            document["chat_template_kwargs"] = self.chat_template_kwargs
        if self.reasoning is not None and self.reasoning.effort is not None:
            document["reasoning_effort"] = self.reasoning.effort
        return document

    def _tools(self) -> dict[str, Any]:
        choice = self.tool_choice
        if not self.tools:
            asked = choice if isinstance(choice, str) else "required"
            return {} if asked in {"auto", "none"} else {"tool_choice": asked}
        named: Any = choice
        if isinstance(choice, NamedTool):
            named = {"type": "function", "function": {"name": choice.name}}
        elif isinstance(choice, AllowedTools):
            tools = [tool.model_dump() for tool in choice.tools]
            named = {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": tools}}
        given: dict[str, Any] = {"tools": [tool.as_chat() for tool in self.tools], "tool_choice": named}
        return given if self.parallel_tool_calls else given | {"parallel_tool_calls": False}


class ResponsesBody(InputBody):
    """A body of `/v1/responses`. store: keep the response for a while; null and absent mean yes if any are kept."""

    store: bool | None = None
    background: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=MAX_COUNT)
    cache_salt: str = Field("", max_length=1024)
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)
    include: Annotated[list[str], BeforeValidator(_included)] = Field([], max_length=16)
    metadata: Annotated[dict[str, str], BeforeValidator(_metadata)] = Field({})

    def as_chat(self, conversation: Sequence[Item]) -> dict[str, Any]:
        """The same as a chat's body."""
        document = super().as_chat(conversation) | {
            "stream": self.stream,
            **self.model_dump(include={"temperature", "top_p", "top_k", "cache_salt"}, exclude_unset=True),
        }
        if self.max_output_tokens is not None:
            document["max_tokens"] = self.max_output_tokens
        if self.include:
            document |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return document

    def repeated(self, sampling: SamplingConfig) -> dict[str, Any]:
        """The fields that a response repeats of its request. sampling: as it is sent to the engine."""
        return {
            "background": self.background,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": self.metadata,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None, "summary": None},
            "service_tier": "default",
            "temperature": sampling.temperature,
            "text": {"format": self.text.format.model_dump(by_alias=True, exclude_none=True), "verbosity": "medium"},
            "tool_choice": self.tool_choice if isinstance(self.tool_choice, str) else self.tool_choice.model_dump(),
            "tools": [{"strict": None, "parameters": None} | tool.model_dump() for tool in self.tools],
            "top_logprobs": self.top_logprobs,
            "top_p": self.top_p if "top_p" in self.model_fields_set else sampling.top_p,
            "truncation": self.truncation,
        }
