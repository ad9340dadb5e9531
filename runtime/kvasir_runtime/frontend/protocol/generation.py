"""Bodies of completion and chat requests: every field that works here, its type and bounds.

The other APIs of the server are translated into a ChatBody, and the offline API builds both, so what follows a body
knows one form. Fields that work are here and in sampling_fields.py; those without effect are in ignored_fields.py.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from kvasir_api.http_apis import MAX_CHOICES, MAX_PROMPTS, MAX_SEQUENCES
from kvasir_api.openai_errors import quoted
from kvasir_runtime.frontend.chat_template import RESERVED
from kvasir_runtime.frontend.protocol import ignored_fields, sampling_fields, tools
from kvasir_runtime.frontend.protocol.sampling_fields import (
    MAX_COUNT,
    MAX_LOGPROBS,
    MAX_TOKEN_ID,
    SamplingFields,
    counts,
)
from kvasir_runtime.frontend.protocol.tools import Effort, ToolCalls, ToolChoiceField, Tools
from kvasir_runtime.frontend.protocol.validation import Raw, StrictModel, refusal, validated
from kvasir_runtime.frontend.structured_outputs import fields


def _prompts(value: Any) -> list[Any]:
    """A text, texts, ids or lists of ids; always as a list of prompts. By hand, as unions give unreadable errors."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("prompt", "must be a string, or a list of strings, token ids or lists of token ids")
    prompts = [value] if all(type(item) is int for item in value) else list(value)
    if len(prompts) > MAX_PROMPTS:
        raise PydanticCustomError("prompt", "holds {count} prompts; at most {limit}", counts(prompts, MAX_PROMPTS))
    for item in prompts:
        ids = isinstance(item, list) and bool(item) and all(type(token) is int for token in item)
        if not (isinstance(item, str) or ids):
            raise PydanticCustomError(
                "prompt", "must be a string, or a list of strings, token ids or lists of token ids"
            )
        if ids and not 0 <= min(item) <= max(item) <= MAX_TOKEN_ID:
            raise PydanticCustomError("prompt", "holds a token id that is negative or too large")
    return prompts


def text_of(value: Any) -> str:
    """A message's text: a string, or a list of text parts, which are joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content", "must be a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise not_text(part)
        texts.append(part["text"])
    return "".join(texts)


def not_text(part: Any) -> PydanticCustomError:
    """The refusal of a part of a message, such as an image, that no model here reads."""
    kind = str(part.get("type"))[:40] if isinstance(part, dict) else type(part).__name__
    return PydanticCustomError("content", "holds a part of type {kind}; only text is served", {"kind": kind})


def _switches(value: dict[str, Any]) -> dict[str, Any]:
    for name, item in value.items():
        if name in RESERVED or not name.isidentifier() or len(name) > 64:
            raise PydanticCustomError("switch", "may not set {name}", {"name": quoted(name)})
        if not isinstance(item, str | int | float | bool) or (isinstance(item, str) and len(item) > 4096):
            raise PydanticCustomError("switch", "takes short texts, numbers and booleans")
    return value


MAX_PRIORITY: Final = 100
"""Of either sign: what is least urgent waits for at most 2,000 seconds behind what is most urgent."""
Prompt = str | list[str] | list[int] | list[list[int]]
ChatSwitches = Annotated[dict[str, Any], Field(max_length=16), AfterValidator(_switches)]


class StreamOptions(StrictModel):
    """include_usage: a last chunk with the counts. continuous_usage_stats: the counts so far in every chunk before it.

    include_obfuscation: we pad nothing, so only false is true.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] = False


class RequestFields(StrictModel):
    """Fields of completions and chats besides those of sampling. model: the first served name where it is left out.

    priority: lower is more urgent.
    """

    model: str | None = Field(None, max_length=512)
    stream: bool = False
    stream_options: StreamOptions | None = None
    include_metrics: bool = False
    cache_salt: str = Field("", max_length=1024)
    priority: int = Field(0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    request_id: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9._:-]*$")
    response_format: fields.ResponseFormat = Field({})


class CompletionBody(RequestFields, SamplingFields):
    """A body of /v1/completions. add_special_tokens: put the tokenizer's BOS before a text prompt.

    max_tokens may be 0 where the prompt is echoed: then it is only scored.
    """

    prompt: Annotated[list[Any], BeforeValidator(_prompts, json_schema_input_type=Prompt)]
    max_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    echo: bool = False
    logprobs: int | None = Field(None, ge=-1, le=MAX_LOGPROBS)
    add_special_tokens: bool = True


class TextPart(BaseModel):
    """A part of a message, as /openapi.json shows it; what else it has is left alone."""

    type: Literal["text"]
    text: str


class Message(StrictModel):
    """One message of a chat. Empty fields (null, []), as in answers sent back as history, are dropped.

    role: templates have roles of their own, such as ipython or observation, and refuse what they do not know.
    """

    # Calls or reasoning of an assistant stand in for a text.
    model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(required=["role"]))

    role: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    content: Annotated[str, BeforeValidator(text_of, json_schema_input_type=str | list[TextPart])]
    name: str | None = Field(None, max_length=256)
    tool_calls: ToolCalls | None = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _said(cls, value: Any) -> Any:
        return tools.without_empty_fields(value) if isinstance(value, dict) else value


class ChatBody(RequestFields, SamplingFields):
    """A body of /v1/chat/completions. chat_template_kwargs: switches of the template, such as enable_thinking."""

    messages: list[Message] = Field(min_length=1, max_length=16_384)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    chat_template_kwargs: ChatSwitches = Field({})
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=-1, le=MAX_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    echo: bool = False
    tools: Tools = Field([])
    tool_choice: ToolChoiceField = None
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    include_reasoning: bool = True
    async_tool_calls: bool = False
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    add_special_tokens: bool = False


Body = CompletionBody | ChatBody


def parse_completion(raw: Raw) -> CompletionBody:
    """A validated completion body. Raises Refused."""
    body = validated(raw, CompletionBody, ignored_fields.COMPLETION)
    _check(body)
    drawn = max(body.n, body.best_of or 1)
    if len(body.prompt) * drawn > MAX_SEQUENCES:
        raise refusal(f"{len(body.prompt)} prompts times n {drawn} is more than {MAX_SEQUENCES} answers", "n")
    if body.best_of is not None and body.best_of < body.n:
        raise refusal(f"best_of {body.best_of} is less than n {body.n}", "best_of")
    if body.stream and drawn > body.n and not body.use_beam_search:
        raise refusal("best_of cannot be streamed: the best is known at the end", "best_of", "unsupported_parameter")
    if body.max_tokens == 0 and not body.echo:
        raise refusal("max_tokens 0 needs echo", "max_tokens")
    return body


def parse_chat(raw: Raw) -> ChatBody:
    """A validated chat body; other APIs are translated into it. Raises Refused."""
    body = validated(raw, ChatBody, ignored_fields.CHAT)
    _check(body)
    if body.top_logprobs and not body.logprobs:
        raise refusal("top_logprobs needs logprobs true", "top_logprobs")
    if body.best_of is not None and body.best_of != body.n and not body.use_beam_search:
        raise refusal("best_of needs use_beam_search true in a chat", "best_of", "unsupported_parameter")
    check_turn(body)
    tools.check(body.tools, body.tool_choice)
    both = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(both) > 1:
        raise refusal("max_tokens and max_completion_tokens differ; send one of them", "max_completion_tokens")
    return body


class ChatTurn(Protocol):
    """The fields that shape the prompt of a chat."""

    @property
    def messages(self) -> Sequence[Message] | None:
        """The chat."""

    @property
    def add_generation_prompt(self) -> bool | None:
        """Whether the prompt ends in the beginning of an answer."""

    @property
    def continue_final_message(self) -> bool:
        """Whether it ends in the text of the last message."""

    @property
    def chat_template_kwargs(self) -> dict[str, Any]:
        """Switches of the template."""

    @property
    def tools(self) -> Sequence[tools.Tool]:
        """Functions that the template shows."""


def check_turn(body: ChatTurn) -> None:
    """Whether the fields about the prompt's end go together. Raises Refused."""
    if body.add_generation_prompt and body.continue_final_message:
        raise refusal("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")
    if body.continue_final_message and not (body.messages and body.messages[-1].content.strip()):
        raise refusal("continue_final_message needs a last message with a text", "continue_final_message")


def _check(body: Body) -> None:
    sampling_fields.check(body)
    if body.stream and body.prompt_logprobs is not None:
        raise refusal("prompt_logprobs cannot be streamed", "prompt_logprobs", "unsupported_parameter")
    if body.truncate_prompt_tokens == 0:
        raise refusal("truncate_prompt_tokens 0 would leave no prompt", "truncate_prompt_tokens")
