"""Bodies of embeddings, rerankings and scores, in OpenAI's, Cohere's and vLLM's shapes: fields, types and bounds.

Called with the raw bytes. What is not here is refused by name.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from kvasir_runtime.frontend.protocol import ignored_fields
from kvasir_runtime.frontend.protocol.sampling_fields import MAX_COUNT, MAX_TOKEN_ID
from kvasir_runtime.frontend.protocol.validation import StrictModel

MAX_INPUTS: Final = 2048
MAX_DOCUMENTS: Final = 1024
MAX_TEXT: Final = 1 << 22

HARMLESS: Final = {
    "priority": ignored_fields.hint(0),
    "rank_fields": ignored_fields.only(),
    "embed_dtype": ignored_fields.only("float32"),
    "endianness": ignored_fields.only("native", "little"),
}


def _inputs(value: Any) -> list[Any]:
    """A text, texts, ids or lists of ids; always as a list."""
    message = "must be a string, or a list of strings, token ids or lists of token ids"
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("input", message)
    inputs = [value] if all(type(item) is int for item in value) else value
    if len(inputs) > MAX_INPUTS:
        counts = {"count": len(inputs), "limit": MAX_INPUTS}
        raise PydanticCustomError("input", "holds {count} inputs; at most {limit}", counts)
    for item in inputs:
        if isinstance(item, str):
            continue
        if not isinstance(item, list) or not item or not all(type(token) is int for token in item):
            raise PydanticCustomError("input", message)
        if not 0 <= min(item) <= max(item) <= MAX_TOKEN_ID:
            raise PydanticCustomError("input", "holds a token id that is negative or too large")
    return inputs


def _text(value: Any) -> Any:
    """A text, also as {"text": …} or {"type": "text", "text": …}."""
    if isinstance(value, dict) and set(value) <= {"text", "type"} and value.get("type", "text") == "text":
        return value.get("text")
    return value


def _texts(value: Any) -> Any:
    """One text stands for a list of it."""
    return [value] if isinstance(value, str | dict) else value


Text = Annotated[str, BeforeValidator(_text), Field(max_length=MAX_TEXT)]
Texts = Annotated[list[Text], BeforeValidator(_texts), Field(min_length=1, max_length=MAX_DOCUMENTS)]
Keep = Annotated[int | None, Field(ge=-1, le=MAX_COUNT)]


class _Pooled(StrictModel):
    """What the three share. truncate_prompt_tokens: of each prompt the first so many; -1 keeps what fits."""

    truncate_prompt_tokens: Keep = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _keeps_something(self) -> "_Pooled":
        if self.truncate_prompt_tokens == 0:
            raise PydanticCustomError("truncate", "may not have truncate_prompt_tokens 0, which would leave no prompt")
        return self


class EmbeddingBody(_Pooled):
    """A body of /v1/embeddings. normalize: to length 1 or not, whatever the model's own files say.

    prompt_name: of the model's prompts, which is put before each text, as sentence-transformers names it.
    """

    model: str | None = Field(None, max_length=512)
    input: Annotated[list[Any], BeforeValidator(_inputs)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, le=MAX_COUNT)
    normalize: bool | None = None
    prompt_name: str | None = Field(None, max_length=512)


class RerankBody(_Pooled):
    """A body of /rerank, as Cohere and Jina have it. top_n: the best so many; 0 and more than there are mean all."""

    model: str | None = Field(None, max_length=512)
    query: Text
    documents: Texts
    top_n: int | None = Field(None, ge=0, le=MAX_COUNT)
    return_documents: bool = True
    max_tokens_per_doc: int | None = Field(None, ge=1, le=MAX_COUNT)
    instruction: str | None = Field(None, max_length=8192)


OTHER_NAMES: Final = {"text_1": ("queries", "data_1"), "text_2": ("documents", "items", "data_2")}
"""What vLLM also calls the two sides of a score's pairs."""


class ScoreBody(_Pooled):
    """A body of /score, as vLLM has it: text_1 with each of text_2, or pair by pair."""

    model: str | None = Field(None, max_length=512)
    text_1: Texts
    text_2: Texts
    instruction: str | None = Field(None, max_length=8192)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        named = dict(value)
        for name, others in OTHER_NAMES.items():
            found = [other for other in others if other in named]
            if len(found) + (name in named) > 1:
                raise PydanticCustomError(
                    "pairs", "has {names}, which are names of the same", {"names": f"{name} and {found[0]}"}
                )
            if found:
                named[name] = named.pop(found[0])
        return named

    @model_validator(mode="after")
    def _pairs(self) -> "ScoreBody":
        first, second = len(self.text_1), len(self.text_2)
        if first not in {1, second}:
            counts = {"first": first, "second": second}
            raise PydanticCustomError("pairs", "holds {first} text_1 for {second} text_2; send one or as many", counts)
        return self
