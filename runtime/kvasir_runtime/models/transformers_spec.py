"""Sizes and windows of a model that transformers computes, as the cache and the scheduler need them.

Pure: read from the library's config, as attributes that its families share, and from what the layers were seen to give
attention. Called by `load_transformers`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kvasir_api import layer_types
from kvasir_api.cache_groups import FULL, LayerAttention, sliding
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.layers.transformers_decoder import Observed
from kvasir_runtime.models.config import ModelConfig

TEMPERATURE: Final = "attn_temperature_tuning"
"""Of Llama 4: scores of positions from floor_scale - 1 on are scaled, by the place of a token in a step."""
_BY_LENGTH: Final = ("dynamic", "longrope")
"""Kinds of rotary embedding whose angles transformers chooses by the longest position of a step: for all its requests
together, and not as the keys in the cache were turned."""


def decoder_spec(config: Any, observed: Observed) -> DecoderSpec:
    """What the engine must know of a model. config: of its text, by transformers.

    Raises ModelError where layers differ in what they keep, or the config contradicts them.
    """
    calls, first = observed.calls, observed.calls[0]
    if any((call.kv_heads, call.head_dim) != (first.kv_heads, first.head_dim) for call in calls):
        sizes = sorted({f"{call.kv_heads} x {call.head_dim}" for call in calls})
        raise ModelError(
            f"layers have keys of different sizes ({', '.join(sizes)}), which blocks of the cache do not hold"
        )
    return DecoderSpec(
        vocab_size=observed.vocab_size,
        hidden_size=observed.hidden_size,
        num_heads=first.heads,
        num_kv_heads=first.kv_heads,
        head_dim=first.head_dim,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * observed.hidden_size,
        attentions=attentions(config, [call.window for call in calls]),
        rope=RopeSpec(kind="none"),
        norm_eps=0.0,
    )


def model_config(spec: DecoderSpec, architectures: Sequence[str], document: Mapping[str, Any]) -> ModelConfig:
    """What is asked of a config besides: names and the ids that end answers. document: config.json.

    Raises ModelError where these are no ids.
    """
    ends = document.get("eos_token_id")
    if ends is not None and not all(isinstance(one, int) for one in (ends if isinstance(ends, list) else [ends])):
        raise ModelError(f"config.json: eos_token_id is {ends!r}, expected ids")
    return ModelConfig(
        architectures=tuple(architectures),
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        eos_token_id=tuple(ends) if isinstance(ends, list) else ends,
    )


def attentions(config: Any, windows: Sequence[int]) -> tuple[LayerAttention, ...]:
    """Of each layer. windows: that the layers give attention, 0 for none.

    Raises ModelError for a window that one of the two names and the other does not.
    """
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or 0
    window = 0 if getattr(config, "use_sliding_window", None) is False else window
    if types is None:
        types = [layer_types.SLIDING_TYPE if window else layer_types.FULL_TYPE] * len(windows)
    spans = {layer_types.FULL_TYPE: 0, layer_types.SLIDING_TYPE: window, layer_types.CHUNKED_TYPE: 0}
    if len(types) != len(windows) or not set(types) <= set(spans):
        raise ModelError(f"config.json: layer_types must name {', '.join(spans)} for each of {len(windows)} layers")
    found = list[LayerAttention]()
    for index, (kind, given) in enumerate(zip(types, windows, strict=True)):
        if given != spans[kind]:
            raise ModelError(f"layer {index} has a window of {given} tokens, and by config.json one of {spans[kind]}")
        chunk = getattr(config, "attention_chunk_size", None) if kind == layer_types.CHUNKED_TYPE else None
        found.append(LayerAttention("chunked", chunk) if chunk else sliding(given) if given else FULL)
    return tuple(found)


def longest_sequence(config: Any, wanted: int, usual: int) -> int:
    """Tokens of the longest sequence whose numbers do not depend on its length. wanted: the option, or 0.

    usual: what the model was made for. Raises ModelError where more is wanted.
    """
    limits = [(max(wanted, usual), "")]
    for rope in _ropes(getattr(config, "rope_parameters", None)):
        kind = rope.get("rope_type") or rope.get("type")
        if kind in _BY_LENGTH:
            own = getattr(config, "original_max_position_embeddings", None)
            positions = getattr(config, "max_position_embeddings", usual)
            limits.append(
                (rope.get("original_max_position_embeddings") or own or positions, f"rotary embedding {kind}")
            )
    if getattr(config, TEMPERATURE, False):
        limits.append((int(config.floor_scale) - 1, TEMPERATURE))
    limit, what = min(limits)
    if wanted > limit:
        raise ModelError(
            f"--max-model-len {wanted}: beyond {limit} tokens {what} changes with the length of a sequence, which"
            f" transformers takes from a whole step; set at most {limit}"
        )
    return min(wanted or usual, limit)


def _ropes(given: Any) -> Iterator[Mapping[str, Any]]:
    """The parameters of all layers, or those of each type of layer."""
    if isinstance(given, Mapping):
        inner = [one for one in given.values() if isinstance(one, Mapping)]
        yield from inner or [given]
