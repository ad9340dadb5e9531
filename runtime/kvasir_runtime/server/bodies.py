"""Bodies of completion and chat requests: every field that works here, its type and bounds, and who is told what.

Called by the routes with the raw bytes; gives a validated model or raises Refused with the field at fault. The rule for
fields: null means absent; what works is below; what is known and has no effect is in known.py; the rest is refused by
name, because an ignored misspelling of max_tokens is worse than an error.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from typing import Annotated, Any, Final, Literal, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError, from_json

from kvasir_api import openai_errors
from kvasir_api.openai_errors import quoted
from kvasir_runtime.server import guidedfields, known, searches, toolbody
from kvasir_runtime.server.refusals import Refused
from kvasir_runtime.server.templates import RESERVED
from kvasir_runtime.server.toolbody import Effort, ToolCalls, ToolChoice, Tools

MAX_CHOICES: Final = 16
MAX_PROMPTS: Final = 128
MAX_SEQUENCES: Final = 256
MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 512
MAX_STOP_IDS: Final = 128
MAX_BAD_WORDS: Final = 128
MAX_BIASES: Final = 1024
MAX_LOGPROBS: Final = 20
MAX_ALLOWED_IDS: Final = 1 << 18
MAX_TOKEN_ID: Final = (1 << 31) - 1
MAX_COUNT: Final = (1 << 31) - 1


def _prompts(value: Any) -> list[Any]:
    """A text, texts, ids or lists of ids; always as a list of prompts. By hand, as unions give unreadable errors."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("prompt", "must be a string, or a list of strings, token ids or lists of token ids")
    prompts = [value] if all(type(item) is int for item in value) else list(value)
    if len(prompts) > MAX_PROMPTS:
        raise PydanticCustomError("prompt", "holds {count} prompts; at most {limit}", _counts(prompts, MAX_PROMPTS))
    for item in prompts:
        ids = isinstance(item, list) and bool(item) and all(type(token) is int for token in item)
        if not (isinstance(item, str) or ids):
            raise PydanticCustomError(
                "prompt", "must be a string, or a list of strings, token ids or lists of token ids"
            )
        if ids and not 0 <= min(item) <= max(item) <= MAX_TOKEN_ID:
            raise PydanticCustomError("prompt", "holds a token id that is negative or too large")
    return prompts


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise PydanticCustomError("stop", "must be a non-empty string or a list of them")
    if len(stops) > MAX_STOPS:
        raise PydanticCustomError("stop", "holds {count} strings; at most {limit}", _counts(stops, MAX_STOPS))
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise PydanticCustomError("stop", "has a string of over {limit} characters", {"limit": MAX_STOP_CHARACTERS})
    return stops


def _biases(value: Any) -> list[tuple[int, float]]:
    """An object of token ids, as strings, and what is added to their logits; as pairs."""
    if not isinstance(value, dict) or not all(name.isascii() and name.isdigit() for name in value):
        raise PydanticCustomError("bias", "must be an object of token ids and numbers")
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("bias", "holds {count} ids; at most {limit}", _counts([*value], MAX_BIASES))
    if not all(type(bias) in {int, float} and -100 <= bias <= 100 for bias in value.values()):
        raise PydanticCustomError("bias", "must hold numbers from -100 to 100")
    if any(len(name) > 10 or int(name) > MAX_TOKEN_ID for name in value):
        raise PydanticCustomError("bias", "holds a token id that is too large")
    return sorted({int(name): float(bias) for name, bias in value.items()}.items())


def _bad_words(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word.strip() for word in value):
        raise PydanticCustomError("words", "must be a list of words")
    if len(value) > MAX_BAD_WORDS:
        raise PydanticCustomError("words", "holds {count} words; at most {limit}", _counts(value, MAX_BAD_WORDS))
    if any(len(word) > MAX_STOP_CHARACTERS for word in value):
        raise PydanticCustomError("words", "has a word of over {limit} characters", {"limit": MAX_STOP_CHARACTERS})
    return value


def text_of(value: Any) -> str:
    """A message's text: a string, or a list of text parts, which are joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content", "must be a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = str(part.get("type"))[:40] if isinstance(part, dict) else type(part).__name__
            raise PydanticCustomError("content", "holds a part of type {kind}; only text is served", {"kind": kind})
        texts.append(part["text"])
    return "".join(texts)


def _switches(value: dict[str, Any]) -> dict[str, Any]:
    for name, item in value.items():
        if name in RESERVED or not name.isidentifier() or len(name) > 64:
            raise PydanticCustomError("switch", "may not set {name}", {"name": quoted(name)})
        if not isinstance(item, str | int | float | bool) or (isinstance(item, str) and len(item) > 4096):
            raise PydanticCustomError("switch", "takes short texts, numbers and booleans")
    return value


def _counts(items: Sized, limit: int) -> dict[str, int]:
    return {"count": len(items), "limit": limit}


Prompt = str | list[str] | list[int] | list[list[int]]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
ChatSwitches = Annotated[dict[str, Any], Field(max_length=16), AfterValidator(_switches)]


class Strict(BaseModel):
    """JSON types are taken literally: "5" is no number and true is none either."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """include_usage: a last chunk with the counts. include_obfuscation: we pad nothing, so only false is true."""

    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False
    include_obfuscation: Literal[False] = False


class SamplingParams(Strict):
    """How the tokens of an answer are drawn and where it ends; in Python as in a body. docs/api.md has the meanings."""

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    min_tokens: int = Field(0, ge=0, le=MAX_COUNT)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=MAX_COUNT)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: Annotated[list[str], BeforeValidator(_stops, json_schema_input_type=str | list[str])] = []
    stop_token_ids: list[TokenId] = Field([], max_length=MAX_STOP_IDS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    logit_bias: Annotated[
        list[tuple[int, float]], BeforeValidator(_biases, json_schema_input_type=dict[str, float])
    ] = []
    bad_words: Annotated[list[str], BeforeValidator(_bad_words, json_schema_input_type=list[str])] = []
    allowed_token_ids: list[TokenId] = Field([], max_length=MAX_ALLOWED_IDS)
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=MAX_COUNT)
    truncation_side: Literal["left", "right"] = "left"
    use_beam_search: bool = False
    length_penalty: float = Field(1.0, ge=-10, le=10)
    early_stopping: searches.EarlyStopping = False
    guided_json: guidedfields.Schema = None
    guided_regex: guidedfields.Pattern | None = None
    guided_choice: guidedfields.Choices = []
    guided_grammar: guidedfields.Pattern | None = None
    guided_whitespace_pattern: guidedfields.Pattern | None = None
    guided_decoding_backend: guidedfields.Backend | None = None
    structured_outputs: guidedfields.Structured = {}


class Body(SamplingParams):
    """What completion and chat requests share."""

    model: str = Field(max_length=512)
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str = Field("", max_length=1024)
    request_id: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9._:-]*$")
    response_format: guidedfields.ResponseFormat = {}


class CompletionBody(Body):
    """A body of /v1/completions. add_special_tokens: put the tokenizer's BOS before a text prompt.

    max_tokens may be 0 where the prompt is echoed: then it is only scored.
    """

    prompt: Annotated[list[Any], BeforeValidator(_prompts, json_schema_input_type=Prompt)]
    max_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool = True


class TextPart(BaseModel):
    """A part of a message, as /openapi.json shows it; what else it has is left alone."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One message of a chat. Fields that say nothing (null, []), as in answers sent back as history, are dropped."""

    # What an assistant called or thought stands in for a text.
    model_config = ConfigDict(json_schema_extra=lambda schema: schema.update(required=["role"]))

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(text_of, json_schema_input_type=str | list[TextPart])]
    name: str | None = Field(None, max_length=256)
    tool_calls: ToolCalls | None = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _said(cls, value: Any) -> Any:
        return toolbody.said(value) if isinstance(value, dict) else value


class ChatBody(Body):
    """A body of /v1/chat/completions. chat_template_kwargs: switches of the template, such as enable_thinking."""

    messages: list[Message] = Field(min_length=1, max_length=16_384)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    chat_template_kwargs: ChatSwitches = {}
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: Tools = []
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    include_reasoning: bool = True
    async_tool_calls: bool = False
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES)
    add_special_tokens: bool = False


_Model = TypeVar("_Model", bound=BaseModel)
Raw = bytes | dict[str, Any]
"""A body as it came, or as it was decoded."""
Table = Mapping[str, tuple[Callable[[Any], bool], str]]


def completion(raw: Raw) -> CompletionBody:
    """A validated completion body. Raises Refused."""
    body = validated(raw, CompletionBody, known.COMPLETION)
    _check(body)
    drawn = max(body.n, body.best_of or 1)
    if len(body.prompt) * drawn > MAX_SEQUENCES:
        raise _refused(f"{len(body.prompt)} prompts times n {drawn} is more than {MAX_SEQUENCES} answers", "n")
    if body.best_of is not None and body.best_of < body.n:
        raise _refused(f"best_of {body.best_of} is less than n {body.n}", "best_of")
    if body.stream and drawn > body.n and not body.use_beam_search:
        raise _refused("best_of cannot be streamed: the best is known at the end", "best_of", "unsupported_parameter")
    if body.max_tokens == 0 and not body.echo:
        raise _refused("max_tokens 0 needs echo", "max_tokens")
    return body


def chat(raw: Raw) -> ChatBody:
    """A validated chat body, also for the surfaces that translate theirs into it. Raises Refused."""
    body = validated(raw, ChatBody, known.CHAT)
    _check(body)
    if body.top_logprobs and not body.logprobs:
        raise _refused("top_logprobs needs logprobs true", "top_logprobs")
    if body.best_of is not None and body.best_of != body.n and not body.use_beam_search:
        raise _refused("best_of needs use_beam_search true in a chat", "best_of", "unsupported_parameter")
    check_turn(body)
    toolbody.check(body.tools, body.tool_choice)
    both = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(both) > 1:
        raise _refused("max_tokens and max_completion_tokens differ; send one of them", "max_completion_tokens")
    return body


class Turn(Protocol):
    """What says whose turn a chat's prompt ends in."""

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
    def tools(self) -> Sequence[toolbody.Tool]:
        """Functions that the template shows."""


def check_turn(body: Turn) -> None:
    """Whether its prompt can end as it is asked to. Raises Refused."""
    if body.add_generation_prompt and body.continue_final_message:
        raise _refused("continue_final_message and add_generation_prompt exclude each other", "continue_final_message")
    if body.continue_final_message and not (body.messages and body.messages[-1].content.strip()):
        raise _refused("continue_final_message needs a last message with a text", "continue_final_message")


def _check(body: Body) -> None:
    searches.check(body)
    if body.stream and body.prompt_logprobs is not None:
        raise _refused("prompt_logprobs cannot be streamed", "prompt_logprobs", "unsupported_parameter")
    if body.truncate_prompt_tokens == 0:
        raise _refused("truncate_prompt_tokens 0 would leave no prompt", "truncate_prompt_tokens")


def decoded(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises Refused."""
    try:
        document = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Refused(openai_errors.invalid(f"The body is not valid JSON: {error}", code="invalid_json")) from error
    if not isinstance(document, dict):
        raise Refused(openai_errors.invalid("The body must be a JSON object.", code="invalid_json"))
    return document


def validated(raw: Raw, model: type[_Model], table: Table, labels: Collection[str] = known.LABELS) -> _Model:
    """The body as a model. table: fields without effect, their harmless values; labels: any value. Raises Refused."""
    document = decoded(raw) if isinstance(raw, bytes) else raw
    fields = {}
    for name, value in document.items():
        if value is None or name in labels:
            continue
        if name in table:
            harmless, names = table[name]
            if not harmless(value):
                message = f"{quoted(name)} is not supported here; only {names} is accepted."
                raise Refused(openai_errors.invalid(message, param=name, code="unsupported_parameter"))
            continue
        fields[name] = value
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _translated(error.errors(include_url=False, include_context=False, include_input=False)[0]) from error


def _translated(detail: ErrorDetails) -> Refused:
    param = _path(detail["loc"])
    if not param:  # the body as a whole
        return Refused(openai_errors.invalid(f"The body {detail['msg']}.", code="invalid_value"))
    match detail["type"]:
        case "extra_forbidden":
            return _refused(f"Unrecognized request argument: {quoted(param)}.", param, "unknown_parameter")
        case "missing":
            return _refused(f"Missing required parameter: {quoted(param)}.", param, "missing_required_parameter")
        case _:
            return _refused(f"Invalid {quoted(param)}: {detail['msg']}.", param, "invalid_value")


def _path(location: tuple[int | str, ...]) -> str:
    """messages[0].content, as OpenAI writes it; a client's names in it are bounded."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path[:200]


def _refused(message: str, param: str, code: str = "invalid_value") -> Refused:
    return Refused(openai_errors.invalid(message, param=param, code=code))
