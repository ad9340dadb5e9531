"""Bodies of `/api/embed` and of the older `/api/embeddings`, and their answers; the vectors are OpenAI's route's.

Called by the routes, in worker threads. Ollama scales the vectors of the first to length 1 and not those of the second.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from kvasir_api import http_apis
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile, served_name
from kvasir_runtime.frontend.pooling import prepare as pooling
from kvasir_runtime.frontend.pooling import vectors
from kvasir_runtime.frontend.pooling.inputs import is_cut
from kvasir_runtime.frontend.pooling.prepare import EmbeddingInputs
from kvasir_runtime.frontend.pooling.protocol import MAX_INPUTS, MAX_TEXT, EmbeddingBody
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.frontend.protocol.sampling_fields import MAX_COUNT
from kvasir_runtime.frontend.protocol.validation import Raw, StrictModel
from kvasir_runtime.server.api import translation
from kvasir_runtime.server.api.ollama import options as ollama_options
from kvasir_runtime.server.api.ollama.options import OllamaOptions
from kvasir_runtime.server.api.pooling.prepare import PooledRequest, pooled_request
from kvasir_runtime.wire import EngineOutput, PoolingConfig

LABELS: Final = frozenset({"keep_alive"})
PREFIX: Final = "ollama-"


def _nothing(_event: EngineOutput) -> vectors.Vector:
    raise AssertionError("no prompt, no vector")


def _texts(value: Any) -> Any:
    texts = ([value] if value else []) if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise PydanticCustomError("input", "must be a string or a list of strings")
    return texts


class _Request(StrictModel):
    model: str = Field(min_length=1, max_length=512)
    options: Annotated[OllamaOptions, BeforeValidator(ollama_options.known)] = OllamaOptions()

    def asked(self, profile: ModelProfile, texts: Sequence[str], **more: Any) -> EmbeddingInputs:
        """The same as a body of /v1/embeddings. Raises Refused."""
        self.options.check(profile.max_context)
        name = http_apis.model_name(self.model, "ollama")
        if not texts:
            served_name(name, profile)
            return EmbeddingInputs(prompts=[], pooling=PoolingConfig(kind="last"), vector=_nothing)
        return pooling.embed(EmbeddingBody(model=name, input=list(texts), **more), profile)


class EmbedRequest(_Request):
    """A body of `/api/embed`. truncate: of a text that is too long the beginning is taken; else it is refused.

    No text, or an empty one, only loads the model, which is loaded.
    """

    input: Annotated[list[str], BeforeValidator(_texts), Field(max_length=MAX_INPUTS)]
    truncate: bool = True
    dimensions: int | None = Field(None, ge=1, le=MAX_COUNT)


class EmbeddingsRequest(_Request):
    """A body of `/api/embeddings`: one text."""

    prompt: str = Field(min_length=1, max_length=MAX_TEXT)


def embed(raw: Raw, profile: ModelProfile, elapsed_s: Callable[[], float]) -> PooledRequest:
    """elapsed_s: since the request came. Raises Refused."""
    body = validation.validated(raw, EmbedRequest, {}, LABELS)
    keep = -1 if body.truncate else None
    asked = body.asked(profile, body.input, normalize=True, dimensions=body.dimensions, truncate_prompt_tokens=keep)
    cut = [
        place for place, text in enumerate(body.input) if asked.prompts and is_cut(text, asked.prompts[place], profile)
    ]

    def write(_id: str, events: Sequence[EngineOutput], _created: int) -> bytes:
        document = {
            "model": body.model,
            "embeddings": [asked.vector(event).tolist() for event in events],
            "total_duration": int(elapsed_s() * 1e9),
            "load_duration": 0,
            "prompt_eval_count": sum(map(len, asked.prompts)),
        }
        return msgspec.json.encode(document | ({"truncated": cut} if cut else {}))

    return pooled_request(PREFIX, asked, write)


def embeddings(raw: Raw, profile: ModelProfile) -> PooledRequest:
    """Raises Refused."""
    body = validation.validated(raw, EmbeddingsRequest, {}, LABELS)
    try:
        asked = body.asked(profile, [body.prompt], normalize=False, truncate_prompt_tokens=-1)
    except Refused as refused:
        raise translation.with_own_names(refused, {"input": "prompt"}) from refused

    cut = is_cut(body.prompt, asked.prompts[0], profile)

    def write(_id: str, events: Sequence[EngineOutput], _created: int) -> bytes:
        document = {"embedding": asked.vector(events[0]).tolist()}
        return msgspec.json.encode(document | ({"truncated": True} if cut else {}))

    return pooled_request(PREFIX, asked, write)
