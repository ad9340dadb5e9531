"""Mamba-2's config.json as that of a hybrid all of whose layers have a state and no feed-forward layer. Called by `hf_config`."""

from typing import Any, Final

from kvasir_api.nemotron_h import BARE, STATE_SIZES

NAMES: Final = {
    "num_heads": "linear_num_value_heads",
    "head_dim": "linear_value_head_dim",
    "state_size": "linear_key_head_dim",
    "n_groups": "linear_num_key_heads",
    "conv_kernel": "linear_conv_kernel_dim",
    "expand": "mamba_expand",
    "use_conv_bias": "mamba_conv_bias",
    "use_bias": "mamba_proj_bias",
    "layer_norm_epsilon": "rms_norm_eps",
}
_LONGEST: Final = 2**18
"""Tokens: a state has no positions, and nothing in a config says where one begins to forget."""
LEFT_OUT: Final[dict[str, Any]] = STATE_SIZES | {"max_position_embeddings": _LONGEST}
_MOST_LAYERS: Final = 1024


def stateful(document: dict[str, Any]) -> dict[str, Any]:
    """The config with layers of states alone. The heads of attention that it has not, and by whose width blocks of the
    cache are cut, are as wide as those of the state.
    """
    layers, hidden = document.get("num_hidden_layers"), document.get("hidden_size")
    if isinstance(layers, int) and 0 < layers <= _MOST_LAYERS:
        document[BARE] = list(range(layers))
    heads, width = (document.get(name, LEFT_OUT[name]) for name in ("linear_num_value_heads", "linear_value_head_dim"))
    document |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": width}
    if isinstance(hidden, int) and isinstance(expand := document.get("mamba_expand", 2), int):
        document["intermediate_size"] = expand * hidden
    return document
