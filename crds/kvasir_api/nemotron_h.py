"""Nemotron-H's config.json as other families have theirs. Called by `hf_config`.

A layer of Nemotron-H is one mixer: Mamba-2, attention, or a feed-forward layer, which may be of experts. Here a
feed-forward layer belongs to the mixer before it, so that two of its layers are one layer of ours, and a mixer with none
behind it is a bare one.
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
    "moe_shared_expert_intermediate_size": "shared_expert_intermediate_size",
}
STATE_SIZES: Final[dict[str, Any]] = {
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 128,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "mamba_conv_bias": True,
    "rms_norm_eps": 1e-5,
}
"""What Mamba-2's own config means by leaving them out, too."""
LEFT_OUT: Final[dict[str, Any]] = STATE_SIZES | {
    "hidden_act": "relu2",
    "head_dim": 128,
    "num_key_value_heads": 8,
    "norm_topk_prob": True,
}
BARE: Final = "bare_layers"
_LETTERS: Final = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_WORDS: Final = {"mamba": "linear_attention", "attention": "full_attention"}
_DENSE, _SPARSE = "mlp", "moe"
_OF_EXPERTS: Final = (
    *("n_routed_experts", "n_shared_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("shared_expert_intermediate_size", "n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"),
    "moe_latent_size",
)
"""What configs name of models that have no experts, too."""
_MOST_LAYERS: Final = 2048


def folded(document: dict[str, Any]) -> dict[str, Any]:
    """The config with a layer for each mixer. Where layers cannot be folded so, their types stay as they are named, so
    that the family refuses them.
    """
    if BARE in document:
        return document  # it was folded before
    document["mamba_proj_bias"] = bool(document.pop("use_bias", False))
    named = _types(document.pop("hybrid_override_pattern", None), document.get("layer_types"))
    if named is None:
        return document
    document |= {"layer_types": named, "num_hidden_layers": len(named)}
    if _SPARSE not in named:
        for field in _OF_EXPERTS:
            document.pop(field, None)
    if (behind := _behind(named)) is not None:
        types = [one for one in named if one not in (_DENSE, _SPARSE)]
        document |= {"layer_types": types, "num_hidden_layers": len(types)}
        document[BARE] = [at for at, one in enumerate(behind) if not one]
        if _SPARSE in named:
            document["mlp_only_layers"] = [at for at, one in enumerate(behind) if one != _SPARSE]
            document.pop("n_shared_experts", None)  # one, as wide as the config says
    return document


def _types(pattern: Any, given: Any) -> list[str] | None:
    """Of each mixer and feed-forward layer, by the words of newer configs; None where neither field names them."""
    if isinstance(given, list) and len(given) <= _MOST_LAYERS and all(isinstance(one, str) for one in given):
        return [str(_WORDS.get(one, one)) for one in given]
    if isinstance(pattern, str) and len(pattern) <= _MOST_LAYERS:
        return [_LETTERS.get(letter, letter) for letter in pattern]
    return None


def _behind(named: Sequence[str]) -> list[str] | None:
    """The feed-forward layer behind each mixer, "" where there is none. None where one has two, or one is before all."""
    behind = list[str]()
    for before, one in zip((_DENSE, *named), named, strict=False):
        if one not in (_DENSE, _SPARSE):
            behind.append("")
        elif before in (_DENSE, _SPARSE):
            return None
        else:
            behind[-1] = one
    return behind
