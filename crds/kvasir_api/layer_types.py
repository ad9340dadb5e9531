"""What the layers of a model see, from the fields of its config.json: for the forecast and for the runtime's families.

Pure; a family that is not named here has full attention in every layer.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kvasir_api.cache_groups import BIDIRECTIONAL, FULL, LayerAttention, sliding

FULL_TYPE: Final = "full_attention"
LINEAR_TYPE: Final = "linear_attention"
SLIDING_TYPE: Final = "sliding_attention"
CHUNKED_TYPE: Final = "chunked_attention"
ENCODERS: Final = (
    *("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "nomic_bert", "modernbert", "jina_bert"),
    *("jina_embeddings_v3", "gte"),
)
"""Families whose tokens see what comes behind them too."""
_EITHER_WAY: Final = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
"""Families of decoders, of some of whose models that is so: for embeddings."""
FIELDS: Final = (
    *("sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "sliding_window_pattern"),
    *("full_attention_interval", "use_bidirectional_attention"),
)
"""What `attentions` reads of a config.json."""

# What a config means that does not say, as the families' own code has it.
GEMMA_WINDOW: Final = 4096
_PATTERNS: Final = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4, "olmo3": 4, "gpt_oss": 2, "exaone4": 4}
"""The last of so many layers sees everything."""
_ONE_WINDOW: Final = ("mistral", "ministral3", "mixtral", "phi3", "phimoe", "starcoder2")
"""All layers have the window of the config, or none has one."""
_LATENTS: Final = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite")
DELTAS: Final = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Families with layers of the gated delta rule, and a gate behind attention."""
MAMBAS: Final = ("granitemoehybrid", "bamba", "falcon_h1", "nemotron_h", "mamba2")
"""Families with layers of Mamba-2."""
_QWEN_FIRST_WINDOW: Final = 28
_DELTA_INTERVAL: Final = 4
_LLAMA4_INTERVAL: Final = 4
_LLAMA4_CHUNK: Final = 8192
_STATE: Final = LayerAttention("state")
_LATENT: Final = LayerAttention("latent")
_MODERNBERT_INTERVAL: Final = 3
_MODERNBERT_WINDOW: Final = 128
"""Of both sides together."""


def attentions(
    family: str,
    num_layers: int,
    *,
    sliding_window: int | None = None,
    use_sliding_window: bool | None = None,
    max_window_layers: int | None = None,
    layer_types: Sequence[str] | None = None,
    sliding_window_pattern: int | None = None,
    full_attention_interval: int | None = None,
    use_bidirectional_attention: bool | None = None,
) -> tuple[LayerAttention, ...]:
    """Of each layer. family: `model_type`; the others as in config.json.

    Raises ValueError where layer_types names another type, or not one for each layer, and for attention in both
    directions in families that do not have it.
    """
    window = sliding_window or 0
    if family == "modernbert":
        every = full_attention_interval or _MODERNBERT_INTERVAL
        types = layer_types or tuple(SLIDING_TYPE if i % every else FULL_TYPE for i in range(num_layers))
        local = LayerAttention("bidirectional", (window or _MODERNBERT_WINDOW) // 2)
        return _by_type(types, num_layers, {FULL_TYPE: BIDIRECTIONAL, SLIDING_TYPE: local})
    if family in ENCODERS:
        return (BIDIRECTIONAL,) * num_layers
    if use_bidirectional_attention and family != "gemma3_text":
        _check_both_ways(family, is_windowed=bool(window and (use_sliding_window or family in _ONE_WINDOW)))
        return (BIDIRECTIONAL,) * num_layers
    if family in _ONE_WINDOW:
        return (sliding(window),) * num_layers
    if family in _LATENTS:
        return (_LATENT,) * num_layers
    if family in DELTAS:
        every = full_attention_interval or _DELTA_INTERVAL
        types = layer_types or tuple(LINEAR_TYPE if (i + 1) % every else FULL_TYPE for i in range(num_layers))
        return _by_type(types, num_layers, {FULL_TYPE: FULL, LINEAR_TYPE: _STATE})
    if family == "llama4_text":
        every = full_attention_interval or _LLAMA4_INTERVAL
        types = layer_types or tuple(CHUNKED_TYPE if (i + 1) % every else FULL_TYPE for i in range(num_layers))
        chunked = LayerAttention("chunked", window or _LLAMA4_CHUNK)
        return _by_type(types, num_layers, {FULL_TYPE: FULL, CHUNKED_TYPE: chunked})
    if family in MAMBAS:
        known = {FULL_TYPE: FULL, LINEAR_TYPE: _STATE, "attention": FULL, "mamba": _STATE}
        return _by_type(layer_types or (LINEAR_TYPE,) * num_layers, num_layers, known)
    if family in _PATTERNS and (window or family != "exaone4"):
        every = sliding_window_pattern or _PATTERNS[family]
        types = layer_types or tuple(SLIDING_TYPE if (i + 1) % every else FULL_TYPE for i in range(num_layers))
        known = {FULL_TYPE: FULL, SLIDING_TYPE: sliding(window or GEMMA_WINDOW)}
        if use_bidirectional_attention:  # the window is that of both sides together
            local = LayerAttention("bidirectional", (window or GEMMA_WINDOW) // 2)
            known = {FULL_TYPE: BIDIRECTIONAL, SLIDING_TYPE: local}
        return _by_type(types, num_layers, known)
    slides = use_sliding_window if family.startswith("qwen") or family == "smollm3" else family == "dots1"
    if not (slides and window):
        return (FULL,) * num_layers
    if family == "qwen3_moe":
        return (sliding(window),) * num_layers
    first = _QWEN_FIRST_WINDOW if max_window_layers is None else max_window_layers
    types = layer_types or tuple(SLIDING_TYPE if i >= first else FULL_TYPE for i in range(num_layers))
    return _by_type(types, num_layers, {FULL_TYPE: FULL, SLIDING_TYPE: sliding(window)})


def _check_both_ways(family: str, *, is_windowed: bool) -> None:
    if family not in _EITHER_WAY or is_windowed:
        what = f"{family} with a window" if family in _EITHER_WAY else family
        raise ValueError(
            f"config.json: attention in both directions (is_causal, use_bidirectional_attention) of {what} is not supported"
        )


def _by_type(types: Sequence[str], num_layers: int, known: Mapping[str, LayerAttention]) -> tuple[LayerAttention, ...]:
    if set(types) - set(known) or len(types) != num_layers:
        raise ValueError(f"config.json: layer_types must name {' or '.join(known)} for each of {num_layers} layers")
    return tuple(known[kind] for kind in types)
