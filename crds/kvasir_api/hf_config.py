"""A Hugging Face config.json before anything typed reads it: nested text models, overrides, and the longest sequence.

Pure functions of documents. The runtime, `kvasir plan` and the operator's inspection use the same ones, so that they
judge the same model.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvasir_api import family_fields, jina

TEXT: Final = "text_config"
QUANTIZATION_FILE: Final = "hf_quant_config.json"
"""What ModelOpt writes beside config.json, its earlier versions in place of a quantization_config there."""
_MULTIPLIED: Final = ("linear", "dynamic", "yarn")
"""Kinds of rotary scaling by whose factor a sequence may be longer than the model's positions."""
_LARGEST_FACTOR: Final = 2**20
_MOST_POSITIONS: Final = 2**53
_MEDIA: Final = {"vision_config": "images", "audio_config": "audio"}
_TITLES: Final = {
    "gemma3": "Gemma 3",
    "mistral3": "Mistral 3",
    "llama4": "Llama 4",
    "qwen3_5": "Qwen3.5",
    "qwen3_5_moe": "Qwen3.5",
}
# What a text_config of a model_type means where it leaves a field out, as the family's own code has it.
_IMPLIED: Final[dict[str, dict[str, Any]]] = {
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    }
}

_PADDED: Final = ("roberta", "xlm-roberta", "camembert", "mpnet", "jina_embeddings_v3")
"""Families whose first token has the position behind that of padding, so that a sequence has fewer than there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLimits:
    """Tokens of the longest sequence: usual without an option, most where an option requests more."""

    usual: int
    most: int


def flattened(document: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the fields of its text_config in place of its own; architectures stays what the model is."""
    nested = document.get(TEXT)
    if not isinstance(nested, Mapping):
        return _usually_named(document)
    own = {name: value for name, value in document.items() if name != TEXT}
    kept = {name: own[name] for name in ("architectures", "quantization_config") if name in own}
    return _with_directions(own | _IMPLIED.get(str(nested.get("model_type")), {}) | flattened(nested) | kept)


def with_quantization(document: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the quantization that `QUANTIZATION_FILE` states, where it states none itself.

    beside: that file, {} without one. One that quantizes caches alone changes nothing.
    """
    stated = beside.get("quantization")
    if not isinstance(stated, Mapping) or not stated.get("quant_algo"):
        return dict(document)
    if flattened(document).get("quantization_config") is not None:
        return dict(document)
    return {**document, "quantization_config": {"quant_method": "modelopt", **stated}}


def _usually_named(document: Mapping[str, Any]) -> dict[str, Any]:
    """With fields under the names that most families have, and what a family means by leaving one out."""
    family = jina.family_of(document)
    renamed = family_fields.RENAMED.get(family, {})
    found = {renamed.get(name, name): value for name, value in document.items()}
    if family not in family_fields.RENAMED:
        found = {
            family_fields.ELSEWHERE[name]: one
            for name, one in document.items()
            if name in family_fields.ELSEWHERE and one
        } | found
    four_times = family in family_fields.FOUR_TIMES or "n_embd" in document
    if four_times and not found.get("intermediate_size") and isinstance(found.get("hidden_size"), int):
        found["intermediate_size"] = count(found, "expansion_ratio", 4) * found["hidden_size"]
    reshaped = family_fields.RESHAPED.get(family)
    found = _with_directions(found if reshaped is None else reshaped(found))
    return family_fields.LEFT_OUT.get(family, {}) | found


def _with_directions(document: dict[str, Any]) -> dict[str, Any]:
    """Whether attention is causal under one name."""
    causal = document.get("is_causal")
    return {"use_bidirectional_attention": not causal, **document} if isinstance(causal, bool) else document


def text_part(document: Mapping[str, Any]) -> str:
    """A sentence for a checkpoint of which only the text part is served, "" for one of text alone."""
    media = [name for key, name in _MEDIA.items() if isinstance(document.get(key), Mapping)]
    if not media or not isinstance(document.get(TEXT), Mapping):
        return ""
    kind = str(document.get("model_type") or "multimodal")
    title = _TITLES.get(kind, kind)
    return f"this is a {title} checkpoint with {' and '.join(media)}; kvasir serves its text part alone"


def overridden(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The flattened config with fields replaced, one by one at the top and in text_config.

    A rope_parameters given replaces a rope_scaling of the file, which would win otherwise.
    """
    given = flattened(overrides)
    own = flattened(document)
    if "rope_parameters" in given and "rope_scaling" not in given:
        own.pop("rope_scaling", None)
    return own | given


def parsed_overrides(text: str) -> dict[str, Any]:
    """The option's JSON as an object; {} for an empty text. Raises ValueError with one line."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"hfOverrides is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError('hfOverrides is not a JSON object such as {"max_position_embeddings": 8192}')
    return found


def without_dollars(text: str) -> str:
    """The same JSON without a $, which Kubernetes would expand in arguments of a container."""
    return text.replace("$", "\\u0024")


def architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in architectures; none where it is missing. Raises ValueError where they are none."""
    names = config.get("architectures") or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"config.json: architectures is {names!r}, expected a list of names")
    return tuple(names)


def count(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    """A field that counts something. Raises ValueError where it is none, or missing without a default."""
    value = config.get(field)
    if value is None and default is None:
        raise ValueError(f"config.json: {field} is missing")
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {field} is {value!r}, expected a positive integer")
    return value


def layer_count(config: Mapping[str, Any]) -> int:
    """Layers of a flattened config, 1..1024: what is summed up over each takes time. Raises ValueError."""
    layers = count(config, "num_hidden_layers")
    if layers > family_fields.MOST_LAYERS:
        raise ValueError(f"config.json: num_hidden_layers is {layers}, expected at most {family_fields.MOST_LAYERS}")
    return layers


def count_or_zero(document: Mapping[str, Any], field: str) -> int:
    """The same of a field that not every config has: 0 where it is absent, null or 0."""
    return count(document, field) if document.get(field) else 0


def first_position(document: Mapping[str, Any]) -> int:
    """The position of a sequence's first token in the model's table of positions, of a flattened config."""
    pad = document.get("pad_token_id", 0)
    is_table = document.get("position_embedding_type") != jina.ROTARY
    is_padded = document.get("model_type") in _PADDED and is_table and isinstance(pad, int) and pad >= 0
    return pad + 1 if is_padded else 0


def sequence_limits(document: Mapping[str, Any]) -> SequenceLimits:
    """Of a flattened config. Raises ValueError where positions or a factor are none that are computed with.

    With YaRN a model serves original_max_position_embeddings times the factor, as model cards describe it,
    whatever max_position_embeddings is. With linear and dynamic scaling the file's max_position_embeddings may
    or may not count the factor, so more than it is computed only where it is asked for.
    """
    positions = document.get("max_position_embeddings", 2048)
    if not isinstance(positions, int) or isinstance(positions, bool) or positions <= first_position(document):
        raise ValueError(f"config.json: max_position_embeddings is {positions!r}, expected a positive integer")
    _check_size("max_position_embeddings", positions)
    positions -= first_position(document)
    scaling = document.get("rope_scaling") or document.get("rope_parameters")
    kind, factor = "", 1.0
    if isinstance(scaling, Mapping):
        kind = str(scaling.get("rope_type") or scaling.get("type") or "")
        given = scaling.get("factor")
        factor = given if isinstance(given, int | float) and kind in _MULTIPLIED else 1.0
        if not 0 < factor <= _LARGEST_FACTOR:
            expected = f"more than 0 and at most {_LARGEST_FACTOR:,}"
            raise ValueError(f"config.json: factor of the rotary embedding is {given}, expected {expected}")
        original = document.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")
        if kind == "yarn" and isinstance(original, int):
            _check_size("original_max_position_embeddings", original)
            longest = max(positions, int(original * factor))
            return SequenceLimits(usual=longest, most=longest)
    most = max(positions, int(positions * factor))
    return SequenceLimits(usual=most if kind == "yarn" else positions, most=most)


def _check_size(field: str, positions: int) -> None:
    if positions > _MOST_POSITIONS:
        raise ValueError(f"config.json: {field} is {positions}, expected at most {_MOST_POSITIONS:,}")
