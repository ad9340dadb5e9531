"""Bodies of `/v1/messages` and its counting of tokens: fields and bounds, and the same as a chat.

Called in a worker thread. Parts that only Anthropic's own service can act on are left out and named to the client.
Field names and limits are Anthropic's.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.frontend.protocol.generation import ChatBody
from kvasir_runtime.frontend.protocol.ignored_fields import hint
from kvasir_runtime.frontend.protocol.sampling_fields import MAX_COUNT, MAX_STOPS
from kvasir_runtime.frontend.protocol.validation import Raw, StrictModel
from kvasir_runtime.server.api import translation
from kvasir_runtime.server.api.anthropic.blocks import (
    Ignored,
    InputMessage,
    Texts,
    ThinkingBlock,
    chat_messages,
    joined,
)
from kvasir_runtime.server.api.nullable_model import NullableModel

LABELS: Final = frozenset({"metadata", "cache_control", "inference_geo", "user_profile_id", "workspace_id"})
"""Accepted with any value: they change no answer, and prompts are cached by their prefix alone."""
HARMLESS: Final = {
    "service_tier": hint("auto", "standard_only"),
    "speed": hint("standard"),
    "container": hint(),
    "mcp_servers": hint([]),
    "diagnostics": hint(),
    "context_management": hint(),
}
NAMES: Final = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "continue_final_message": "messages",
}


class AnthropicDetail(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """An answer that is an error."""

    type: Literal["error"]
    error: AnthropicDetail


class Tool(NullableModel):
    """A function that the model may call."""

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1, max_length=128)
    description: str = ""
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: Ignored = None
    eager_input_streaming: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        """As a chat has it."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.input_schema}
        if self.description:
            function["description"] = self.description
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class ToolChoice(NullableModel):
    """Whether and which tool is called. name: with type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def as_chat(self) -> Any:
        """As a chat has it."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name or ""}}
        return {"auto": "auto", "any": "required", "none": "none"}[self.type]


class Thinking(NullableModel):
    """Whether the model thinks first. budget_tokens bounds nothing beside max_tokens, as models here have no budget."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1024, le=MAX_COUNT)
    display: Literal["summarized", "omitted"] | None = None


class Format(NullableModel):
    """The form that an answer must have."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(NullableModel):
    """How much the model thinks, and the form of its answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


def _spoken(turns: list[InputMessage]) -> list[InputMessage]:
    if not turns:
        raise PydanticCustomError("messages", "must hold at least one message")
    if turns[-1].role == "assistant" and any(isinstance(block, ThinkingBlock) for block in turns[-1].content[-1:]):
        raise PydanticCustomError("messages", "may not end in a thinking block")
    return turns


def _functions(value: Any, info: ValidationInfo) -> Any:
    """Only the tools with a schema of their own: the others run at Anthropic, or are known to its models alone."""
    return translation.tools_of_type("custom", value, info)


def _stops(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MAX_STOPS:
        raise PydanticCustomError(
            "stop", "holds {count} strings; at most {limit}", {"count": len(value), "limit": MAX_STOPS}
        )
    return value


class CountTokensBody(StrictModel):
    """A body of `/v1/messages/count_tokens`: what shapes the prompt."""

    model: str | None = Field(None, max_length=512)
    messages: Annotated[list[InputMessage], Field(max_length=16_384), AfterValidator(_spoken)]
    system: Texts = Field([])
    tools: Annotated[list[Tool], BeforeValidator(_functions)] = Field([], max_length=1024)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def as_chat(self) -> dict[str, Any]:
        """The same as a chat's body."""
        messages = chat_messages(self.messages)
        if self.system:
            messages.insert(0, {"role": "system", "content": joined(self.system)})
        document: dict[str, Any] = {"model": self.model, "messages": messages}
        if self.messages[-1].role == "assistant":
            document["continue_final_message"] = True
        if self.tools:
            document["tools"] = [tool.as_chat() for tool in self.tools]
        if self.tool_choice is not None:
            document["tool_choice"] = self.tool_choice.as_chat()
            if self.tool_choice.disable_parallel_tool_use:
                document["parallel_tool_calls"] = False
        return document | self._thought() | self._formed()

    @property
    def names(self) -> Mapping[str, str]:
        """A chat's fields, and what they are called here."""
        off = self.thinking is not None and self.thinking.type == "disabled"
        return {**NAMES, "reasoning_effort": "thinking" if off else "output_config.effort"}

    def _thought(self) -> dict[str, Any]:
        """The effort high is Anthropic's default, so it changes nothing but the variables of chat templates."""
        effort = self.output_config.effort if self.output_config is not None else None
        thinking = self.thinking.type if self.thinking is not None else None
        if thinking == "disabled":
            return translation.thinking_fields(False)
        switches: dict[str, Any] = {"enable_thinking": True, "thinking": True} if thinking is not None else {}
        if effort == "high":
            return {"chat_template_kwargs": switches | {"reasoning_effort": "high"}}
        kwargs = {"chat_template_kwargs": switches} if switches else {}
        return kwargs | ({"reasoning_effort": effort} if effort is not None else {})

    def _formed(self) -> dict[str, Any]:
        form = self.output_config.format if self.output_config is not None else None
        if form is None:
            return {}
        schema = {"name": "answer", "schema": form.schema_, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}


class MessagesBody(CountTokensBody):
    """A body of `/v1/messages`."""

    max_tokens: int = Field(ge=1, le=MAX_COUNT)
    stream: bool = False
    temperature: float = Field(1.0, ge=0, le=1)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=0, le=MAX_COUNT)
    stop_sequences: Annotated[list[str], BeforeValidator(_stops)] = Field([])

    def as_chat(self) -> dict[str, Any]:
        """The same as a chat's body."""
        return super().as_chat() | {
            "max_tokens": self.max_tokens,
            "stream": self.stream,
            "stop": self.stop_sequences,
            **self.model_dump(include={"temperature", "top_p", "top_k"}, exclude_unset=True),
        }


def parsed(raw: Raw) -> tuple[MessagesBody, ChatBody]:
    """A checked body, and the chat that it means. Raises Refused."""
    body = validation.validated(raw, MessagesBody, HARMLESS, LABELS)
    _check_thinking(body.thinking, body.max_tokens)
    _check_choice(body.tool_choice)
    return body, translation.chat_body(body.as_chat(), body.names)


def counted(raw: Raw, profile: ModelProfile) -> dict[str, int]:
    """input_tokens of the prompt that `/v1/messages` would send. Raises Refused."""
    body = validation.validated(raw, CountTokensBody, HARMLESS, LABELS)
    _check_choice(body.tool_choice)
    chat = translation.chat_body(body.as_chat(), body.names)
    return {"input_tokens": translation.prompt_tokens(chat, profile, body.names)}


def _check_thinking(thinking: Thinking | None, max_tokens: int) -> None:
    if thinking is None or thinking.type != "enabled":
        return
    if thinking.budget_tokens is None:
        message, code = "Missing required parameter: `thinking.budget_tokens`.", "missing_required_parameter"
    elif thinking.budget_tokens >= max_tokens:
        message, code = "`thinking.budget_tokens` must be less than `max_tokens`.", "invalid_value"
    else:
        return
    raise Refused(openai_errors.invalid(message, param="thinking.budget_tokens", code=code))


def _check_choice(choice: ToolChoice | None) -> None:
    if choice is not None and (choice.type == "tool") != (choice.name is not None):
        message = "`tool_choice.name` is needed with the type tool, and with no other."
        raise Refused(openai_errors.invalid(message, param="tool_choice.name", code="invalid_value"))
