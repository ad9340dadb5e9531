"""Nemotron-H's config.json as other families have theirs. Called by `hf_config`.

A layer of Nemotron-H is one mixer: Mamba-2, attention, or a feed-forward layer. Here a feed-forward layer belongs to the
mixer before it, so that two of its layers are one layer of ours, and a mixer with none behind it is a bare one.
"""

from collections.abc import Sequence
from typing import Any, Final

NAMES: Final = {
    "mamba_num_heads": "linear_num_value_heads",
    "mamba_head_dim": "linear_value_head_dim",
    "ssm_state_size": "linear_key_head_dim",
    "n_groups": "linear_num_key_heads",
    "conv_kernel": "linear_conv_kernel_dim",
    "use_conv_bias": "mamba_conv_bias",
    "attention_head_dim": "head_dim",
    "layer_norm_epsilon": "rms_norm_eps",
    "mlp_hidden_act": "hidden_act",
    "layers_block_type": "layer_types",
}
LEFT_OUT: Final[dict[str, Any]] = {
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 128,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "mamba_conv_bias": True,
    "hidden_act": "relu2",
    "rms_norm_eps": 1e-5,
    "head_dim": 128,
    "num_key_value_heads": 8,
}
BARE: Final = "bare_layers"
_LETTERS: Final = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_WORDS: Final = {"mamba": "linear_attention", "attention": "full_attention"}
_MIXERS: Final = ("linear_attention", "full_attention")
_OF_EXPERTS: Final = (
    *("n_routed_experts", "n_shared_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("moe_shared_expert_intermediate_size", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"),
)
"""What configs name of models that have no experts, too."""
_MOST_LAYERS: Final = 2048


def folded(document: dict[str, Any]) -> dict[str, Any]:
    """The config with a layer for each mixer. Where layers cannot be folded so, and where some have experts, their types
    stay as they are named, so that the family refuses them.
    """
    if BARE in document:
        return document  # it was folded before
    document["mamba_proj_bias"] = bool(document.pop("use_bias", False))
    named = _types(document.pop("hybrid_override_pattern", None), document.get("layer_types"))
    if named is None:
        return document
    document |= {"layer_types": named, "num_hidden_layers": len(named)}
    if "moe" in named:
        return document
    for field in _OF_EXPERTS:
        document.pop(field, None)
    if (bare := _bare(named)) is not None:
        types = [one for one in named if one != "mlp"]
        document |= {"layer_types": types, "num_hidden_layers": len(types), BARE: bare}
    return document


def _types(pattern: Any, given: Any) -> list[str] | None:
    """Of each mixer and feed-forward layer, by the words of newer configs; None where neither field names them."""
    if isinstance(given, list) and len(given) <= _MOST_LAYERS and all(isinstance(one, str) for one in given):
        return [str(_WORDS.get(one, one)) for one in given]
    if isinstance(pattern, str) and len(pattern) <= _MOST_LAYERS:
        return [_LETTERS.get(letter, letter) for letter in pattern]
    return None


def _bare(named: Sequence[str]) -> list[int] | None:
    """Which mixers have no feed-forward layer behind them; None where one has two of those, or one is before all."""
    bare, mixers, before = list[int](), 0, ""
    for one in (*named, ""):
        if before in _MIXERS and one != "mlp":
            bare.append(mixers - 1)
        if one == "mlp" and before not in _MIXERS:
            return None
        mixers, before = mixers + (one in _MIXERS), one
    return bare
