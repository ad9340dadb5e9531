"""`options` of Ollama's requests: those that change an answer, and those for Ollama's own loader, which have no effect.

Called by the bodies. The defaults are Ollama's, so that a client that moves here is answered in the same way.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol.sampling_fields import MAX_COUNT
from kvasir_runtime.server.api.nullable_model import NullableModel, null_is_absent

LOADING: Final = (
    "numa",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "low_vram",
    "f16_kv",
    "use_mmap",
    "use_mlock",
    "num_thread",
    "num_keep",
)
"""Options for Ollama's loader: they change no answer."""

_ASKS_NOTHING: Final[dict[str, tuple[float, ...]]] = {
    "typical_p": (1,),
    "tfs_z": (1,),
    "mirostat": (0,),
    "repeat_last_n": (-1,),
    "penalize_newline": (True,),
    "vocab_only": (False,),
    "embedding_only": (False,),
    "logits_all": (False,),
}
HARMLESS: Final = tuple(_ASKS_NOTHING)

_OURS: Final = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""Options that a chat calls otherwise."""


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _described(schema: dict[str, Any]) -> None:
    """The schema with Ollama's own options, which `known` accepts without effect."""
    null_is_absent(schema)
    schema["properties"] |= {name: {} for name in LOADING}
    schema["properties"] |= {name: {"enum": [*values, None]} for name, values in _ASKS_NOTHING.items()}
    schema["properties"] |= {f"mirostat_{name}": {} for name in ("eta", "tau")}


class OllamaOptions(NullableModel):
    """num_predict: -1 and -2 mean all that fits. num_ctx: at most the context that is served."""

    model_config = ConfigDict(json_schema_extra=_described)

    num_predict: int = Field(-1, ge=-2, le=MAX_COUNT)
    num_ctx: int | None = Field(None, ge=1, le=MAX_COUNT)
    temperature: float = Field(0.8, ge=0, le=2)
    top_k: int = Field(40, ge=0, le=MAX_COUNT)
    top_p: float = Field(0.9, ge=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: Annotated[list[str], BeforeValidator(_texts)] = Field([])
    repeat_penalty: float = Field(1.0, ge=0.01, le=100)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)

    def as_sampling(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """As a chat's and a completion's bodies have them. own: the model's defaults, which go before Ollama's."""
        found = {
            _OURS.get(name, name): getattr(self, name)
            for name in type(self).model_fields
            if name != "num_ctx" and (name in self.model_fields_set or _OURS.get(name, name) not in own)
        }
        if found.get("max_tokens", 1) < 1:
            found["max_tokens"] = MAX_COUNT
        return found

    def check(self, max_context: int) -> None:
        """Check num_ctx against the served context. Raises Refused."""
        if self.num_ctx is not None and self.num_ctx > max_context:
            message = f"`options.num_ctx` {self.num_ctx} is more than the {max_context} tokens that are served."
            raise Refused(openai_errors.invalid(message, param="options.num_ctx", code="invalid_value"))


def _same(one: Any, other: float) -> bool:
    """As JSON sees it: 0 is not false."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def known(value: Any) -> Any:
    """The options that change an answer. Raises Refused for options of Ollama that are not supported here."""
    if not isinstance(value, dict):
        return value
    found = {}
    for name, one in value.items():
        if one is None or name in LOADING or (name.startswith("mirostat_") and not value.get("mirostat")):
            continue
        if name in _ASKS_NOTHING:
            if not any(_same(one, taken) for taken in _ASKS_NOTHING[name]):
                takes = str(_ASKS_NOTHING[name][0]).lower()
                message = f"`options.{name}` is not supported here; only {takes} is accepted."
                raise Refused(openai_errors.invalid(message, param=f"options.{name}", code="unsupported_parameter"))
            continue
        found[name] = one
    return found
