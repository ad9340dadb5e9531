"""Bodies of `/api/chat` and `/api/generate`: what is taken, and what it means as a chat or as a completion.

Called in a worker thread. What is not here is refused by name. A request
without messages or prompt asks Ollama to load the model, which is loaded here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from kvasir_api import http_apis
from kvasir_runtime.frontend.protocol.ignored_fields import only
from kvasir_runtime.frontend.protocol.sampling_fields import MAX_LOGPROBS
from kvasir_runtime.frontend.protocol.validation import StrictModel
from kvasir_runtime.server.api import translation
from kvasir_runtime.server.api.nullable_model import NullableModel
from kvasir_runtime.server.api.ollama import options as ollama_options
from kvasir_runtime.server.api.ollama.options import OllamaOptions

LABELS: Final = frozenset({"keep_alive"})
"""How long Ollama keeps a model in memory: here a model is served as long as the server lives."""
CHAT_HARMLESS: Final = {"images": only([]), "truncate": only(True), "shift": only(True)}
GENERATE_HARMLESS: Final = {
    **CHAT_HARMLESS,
    "suffix": only(""),
    "template": only(""),
    "context": only([]),
    "width": only(0),
    "height": only(0),
    "steps": only(0),
}
NAMES: Final = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "reasoning_effort": "think",
    "stop": "options.stop",
}


class OllamaError(msgspec.Struct):
    """An answer that is an error."""

    error: str


class CalledFunction(NullableModel):
    """What was called."""

    name: str = Field(min_length=1, max_length=256)
    arguments: dict[str, Any] = Field({})
    index: int | None = None
    description: str | None = None


class ToolCall(NullableModel):
    """A call that the model made. id: optional, because Ollama's own messages long had none."""

    function: CalledFunction
    id: str | None = Field(None, max_length=256)
    type: Literal["function"] = "function"


def _empty(value: Any) -> Any:
    if value:
        raise PydanticCustomError("images", "are not supported here; only text is served")
    return value


class Message(NullableModel):
    """One message. tool_name: which call's result it is."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: list[ToolCall] = Field([])
    tool_name: str | None = Field(None, max_length=256)
    tool_call_id: str | None = Field(None, max_length=256)
    images: Annotated[Any, BeforeValidator(_empty)] = None


class Request(StrictModel):
    """What both share. format: json, or a schema. think: true, false or a level."""

    model: str = Field(min_length=1, max_length=512)
    stream: bool = True
    options: Annotated[OllamaOptions, BeforeValidator(ollama_options.known)] = OllamaOptions()
    format: Literal["", "json"] | dict[str, Any] = ""
    think: bool | str | None = None
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)

    @property
    def served_name(self) -> str:
        """The model without the tag that Ollama adds."""
        return http_apis.model_name(self.model, "ollama")

    def shared(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a chat's and a completion's body. own: defaults of the model."""
        document = {"model": self.served_name, "stream": self.stream, **self.options.as_sampling(own)}
        if isinstance(self.format, dict):
            schema = {"name": "format", "schema": self.format, "strict": True}
            document["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self.format:
            document["response_format"] = {"type": "json_object"}
        return document

    def _as_chat(self, messages: list[dict[str, Any]], own: Mapping[str, Any]) -> dict[str, Any]:
        document = self.shared(own) | {"messages": messages} | translation.thinking_fields(self.think)
        return document | ({"logprobs": True, "top_logprobs": self.top_logprobs} if self.logprobs else {})


class ChatRequest(Request):
    """A body of `/api/chat`. tools: as in a chat of OpenAI's."""

    messages: list[Message] = Field([], max_length=16_384)
    tools: list[dict[str, Any]] = Field([], max_length=1024)

    def as_chat(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The same as a chat's body. own: defaults of the model."""
        document = self._as_chat(_chat_messages(self.messages), own)
        if self.messages[-1].role == "assistant" and self.messages[-1].content:
            document["continue_final_message"] = True
        return document | ({"tools": [_tool(tool) for tool in self.tools]} if self.tools else {})


class GenerateRequest(Request):
    """A body of `/api/generate`. raw: the prompt is sent as it is, without the model's chat template."""

    prompt: str = ""
    system: str = ""
    raw: bool = False

    def as_chat(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The same as a chat's body. own: defaults of the model."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self._as_chat([*system, {"role": "user", "content": self.prompt}], own)

    def as_completion(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The same as a completion's body. own: defaults of the model."""
        logprobs = {"logprobs": self.top_logprobs} if self.logprobs else {}
        length = {name: own[name] for name in ("max_tokens",) if name in own}
        return length | self.shared(own) | {"prompt": self.prompt} | logprobs


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Without the null fields that Ollama's client adds to a function's parameters."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return {"type": "function", **tool}
    return {"type": "function", **tool, "function": _said(function)}


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _said(one) for name, one in value.items() if one is not None}
    return [_said(one) for one in value] if isinstance(value, list) else value


def _chat_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Calls get ids where they have none, and results those of the calls that they answer, in order."""
    found: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []
    for place, message in enumerate(messages):
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.tool_calls:
            calls = [(call.id or f"call_{place}_{index}", call) for index, call in enumerate(message.tool_calls)]
            waiting += [(call_id, call.function.name) for call_id, call in calls]
            one["tool_calls"] = [_called(call_id, call.function) for call_id, call in calls]
        if message.role == "tool":
            one |= _answered(message, waiting)
        found.append(one)
    return found


def _called(call_id: str, function: CalledFunction) -> dict[str, Any]:
    arguments = json.dumps(function.arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": function.name, "arguments": arguments}}


def _answered(message: Message, waiting: list[tuple[str, str]]) -> dict[str, Any]:
    if message.tool_call_id is not None:
        call_id = message.tool_call_id
    else:
        fitting = [call for call in waiting if message.tool_name in {None, call[1]}] or waiting
        call_id = fitting[0][0] if fitting else "call"
    waiting[:] = [call for call in waiting if call[0] != call_id]
    return {"tool_call_id": call_id} | ({"name": message.tool_name} if message.tool_name else {})
