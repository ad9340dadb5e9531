"""The documents of OpenAI's API and of vLLM's additions, as they are encoded and as /openapi.json shows them.

Bodies of requests are in frontend/protocol, because the offline engine reads them too. Reasoning has both
names that clients of vLLM read, reasoning_content and reasoning.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kvasir_runtime.frontend.logprobs import ChatLogprobs, TextLogprobs


class ErrorDetail(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    """An answer that is an error."""

    error: ErrorDetail


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Part of Usage: prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Part of Usage: tokens of the answer that are reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one request, all its choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class FunctionCallDelta(msgspec.Struct, omit_defaults=True):
    """A piece of a call: its name, or some of its arguments, or both."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to a call; id and type only in the first."""

    index: int
    function: FunctionCallDelta
    id: str | None = None
    type: str | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a chat message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class FunctionCall(msgspec.Struct, frozen=True):
    """What to call. arguments: JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A whole call."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice in a chat chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a completion, whole or in a chunk."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType | None = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a whole chat answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class RequestMetricsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one answer, as vLLM's include_metrics gives them; null where there were too few tokens."""

    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    queue_time_ms: float | None
    mean_itl_ms: float | None
    tokens_per_second: float | None


class AnyCompletion(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Any of the four documents. usage, if requested, is null in every chunk but the last."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice] | list[CompletionChoice] | list[ChatChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: tuple[int, ...] | UnsetType | None = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET
    metrics: RequestMetricsDocument | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """A whole answer of a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[Any] | None
    metrics: RequestMetricsDocument | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """A whole answer of a completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: RequestMetricsDocument | UnsetType = UNSET


class Tokens(msgspec.Struct):
    """A text in token ids."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Prompt(msgspec.Struct):
    """Token ids as text."""

    prompt: str


class Model(msgspec.Struct):
    """A name of the model, for clients of OpenAI's API and of Anthropic's. max_model_len: null while it loads."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    root: str
    parent: str | None
    max_model_len: int | None
    max_input_tokens: int | None


class Models(msgspec.Struct):
    """All names of the model."""

    object: Literal["list"]
    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Aborted(msgspec.Struct):
    """How many requests were running under the ids."""

    num_aborted: int


ANSWERS: Final[dict[str, Any]] = {
    "/v1/completions": Completion,
    "/v1/chat/completions": ChatCompletion,
    "/v1/models": Models,
    "/v1/models/{name}": Model,
    "/tokenize": Tokens,
    "/detokenize": Prompt,
    "/abort_requests": Aborted,
    "/abort_request": Aborted,
}
"""The document with which each path answers."""
