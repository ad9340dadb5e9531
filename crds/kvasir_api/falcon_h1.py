"""Falcon-H1's config.json as other families have theirs. Called by `hf_config`.

A layer of Falcon-H1 has attention and Mamba-2 side by side, behind one norm. Here it is two layers: the state, without a
feed-forward layer, and the attention joined to it, which reads what the state reads. So each has a cache group.
"""

from typing import Any, Final

from kvasir_api.nemotron_h import BARE

JOINED: Final = "joined_layers"
"""Layers that read what the layer before them reads."""
LEFT_OUT: Final[dict[str, Any]] = {"rms_norm_eps": 1e-5, "mamba_rms_norm": False}
_MOST_LAYERS: Final = 512
_STATE_WIDTH: Final = 1024


def halved(document: dict[str, Any]) -> dict[str, Any]:
    """The config with two layers for each, and the width of a head of the state where it is left to other sizes."""
    layers = document.get("num_hidden_layers")
    if JOINED in document or not isinstance(layers, int) or not 0 < layers <= _MOST_LAYERS:
        return document  # it was halved before, or is refused for its number
    document |= {
        "num_hidden_layers": 2 * layers,
        "layer_types": ["linear_attention", "full_attention"] * layers,
        BARE: list(range(0, 2 * layers, 2)),
        JOINED: list(range(1, 2 * layers, 2)),
    }
    width, heads = document.get("mamba_d_ssm", _STATE_WIDTH), document.get("linear_num_value_heads", 128)
    if width is None and isinstance(hidden := document.get("hidden_size"), int):
        expand = document.get("mamba_expand", 2)
        width = expand * hidden if isinstance(expand, int) else None
    if not isinstance(width, int):
        return document
    document["mamba_d_ssm"] = width
    if not isinstance(document.get("linear_value_head_dim"), int) and isinstance(heads, int) and heads > 0:
        document["linear_value_head_dim"] = width // heads
    return document
