"""Fields of sampling and of where an answer ends: types and bounds, the same over HTTP and in Python.

docs/api.md has the meanings. The bodies of completions and chats inherit them, and so do the offline API's parameters.
"""

from collections.abc import Sized
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from kvasir_api.http_apis import MAX_CHOICES
from kvasir_api.openai_errors import quoted
from kvasir_runtime.frontend.protocol.validation import StrictModel, refusal
from kvasir_runtime.frontend.structured_outputs import fields

MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 512
MAX_STOP_IDS: Final = 128
MAX_BAD_WORDS: Final = 128
MAX_NAMED: Final = 4
"""Names of a client that an error repeats."""
MAX_BIASES: Final = 1024
MAX_LOGPROBS: Final = 20
MAX_LOGPROB_IDS: Final = 1024
MAX_ALLOWED_IDS: Final = 1 << 18
MAX_TOKEN_ID: Final = (1 << 31) - 1
MAX_COUNT: Final = (1 << 31) - 1


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise PydanticCustomError("stop", "must be a non-empty string or a list of them")
    if len(stops) > MAX_STOPS:
        raise PydanticCustomError("stop", "holds {count} strings; at most {limit}", counts(stops, MAX_STOPS))
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise PydanticCustomError("stop", "has a string of over {limit} characters", {"limit": MAX_STOP_CHARACTERS})
    return stops


def _biases(value: Any) -> list[tuple[int, float]]:
    """An object of token ids, as strings, and what is added to their logits; as pairs."""
    if not isinstance(value, dict):
        raise PydanticCustomError("bias", "must be an object of token ids and numbers")
    strange = [name for name in value if not (name.isascii() and name.isdigit())]
    if strange:
        names = ", ".join(map(quoted, strange[:MAX_NAMED]))
        raise PydanticCustomError("bias", "has {names} where token ids are expected", {"names": names})
    if len(value) > MAX_BIASES:
        raise PydanticCustomError("bias", "holds {count} ids; at most {limit}", counts([*value], MAX_BIASES))
    if not all(type(bias) in {int, float} and -100 <= bias <= 100 for bias in value.values()):
        raise PydanticCustomError("bias", "must hold numbers from -100 to 100")
    if any(len(name) > 10 or int(name) > MAX_TOKEN_ID for name in value):
        raise PydanticCustomError("bias", "holds a token id that is too large")
    return sorted({int(name): float(bias) for name, bias in value.items()}.items())


def _bad_words(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word.strip() for word in value):
        raise PydanticCustomError("words", "must be a list of words")
    if len(value) > MAX_BAD_WORDS:
        raise PydanticCustomError("words", "holds {count} words; at most {limit}", counts(value, MAX_BAD_WORDS))
    if any(len(word) > MAX_STOP_CHARACTERS for word in value):
        raise PydanticCustomError("words", "has a word of over {limit} characters", {"limit": MAX_STOP_CHARACTERS})
    return value


def counts(items: Sized, limit: int) -> dict[str, int]:
    """What a message about too many of them shows."""
    return {"count": len(items), "limit": limit}


TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]


def _early_stopping(value: Any) -> Any:
    """By hand, as unions give unreadable errors."""
    if isinstance(value, bool) or value == "never":
        return value
    raise PydanticCustomError("early_stopping", 'must be true, false or "never"')


_Early = bool | Literal["never"]
EarlyStopping = Annotated[_Early, BeforeValidator(_early_stopping, json_schema_input_type=_Early)]
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "temperature": (0, 1),
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ([],),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logprob_token_ids": ([],),
    "stop": ([],),
}
"""Fields that change sampling, and their neutral values. A seed is harmless: every search gives the same."""
PLAIN: Final[dict[str, Any]] = {"length_penalty": 1, "early_stopping": False}


class SamplingFields(StrictModel):
    """How the tokens of an answer are sampled and where it ends."""

    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    min_tokens: int = Field(0, ge=0, le=MAX_COUNT)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=MAX_COUNT)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: Annotated[list[str], BeforeValidator(_stops, json_schema_input_type=str | list[str])] = Field([])
    stop_token_ids: list[TokenId] = Field([], max_length=MAX_STOP_IDS)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    logit_bias: Annotated[
        list[tuple[int, float]], BeforeValidator(_biases, json_schema_input_type=dict[str, float])
    ] = Field([])
    bad_words: Annotated[list[str], BeforeValidator(_bad_words, json_schema_input_type=list[str])] = Field([])
    allowed_token_ids: Annotated[list[TokenId], FailFast()] = Field([], max_length=MAX_ALLOWED_IDS)
    prompt_logprobs: int | None = Field(None, ge=-1, le=MAX_LOGPROBS)
    logprob_token_ids: list[TokenId] = Field([], max_length=MAX_LOGPROB_IDS)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=MAX_COUNT)
    truncation_side: Literal["left", "right"] = "left"
    use_beam_search: bool = False
    length_penalty: float = Field(1.0, ge=-10, le=10)
    early_stopping: EarlyStopping = False
    guided_json: fields.Schema = None
    guided_regex: fields.Pattern | None = None
    guided_choice: fields.Choices = Field([])
    guided_grammar: fields.Pattern | None = None
    guided_whitespace_pattern: fields.Pattern | None = None
    guided_decoding_backend: fields.Backend | None = None
    structured_outputs: fields.Structured = Field({})


def check(body: SamplingFields) -> None:
    """Whether the fields go together. Raises Refused."""
    if not body.use_beam_search:
        for name, value in PLAIN.items():
            if getattr(body, name) != value:
                raise refusal(f"{name} needs use_beam_search true", name)
        return
    for name, values in NEUTRAL.items():
        if getattr(body, name) not in values:
            raise refusal(f"{name} has no effect on a beam search; leave it out", name)
