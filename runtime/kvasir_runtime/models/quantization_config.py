"""Which quantized checkpoints are read: those in e4m3 with scales for matrix, rows or blocks of 128 x 128.

Called by `config`, with `quantization_config` as it is written. What a tensor's scales are is seen at the tensor; here
only what would be read wrongly is refused, by name.
"""

from collections.abc import Mapping
from typing import Any, Final

BLOCK: Final = [128, 128]


def refusal(config: Mapping[str, Any]) -> str:
    """What the checkpoint is that is not read; "" for one that is."""
    method = config.get("quant_method", "unnamed")
    if method == "fp8":
        block = config.get("weight_block_size")
        return "" if block in (None, BLOCK) else f"weights are fp8 in blocks of {block}, expected {BLOCK}"
    if method == "compressed-tensors":
        return _compressed(config)
    return f"weights are quantized with {method}"


def _compressed(config: Mapping[str, Any]) -> str:
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        return "compressed-tensors without config_groups"
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            return f"weights of {name} are not described"
        bits, kind, strategy = (weights.get(key) for key in ("num_bits", "type", "strategy"))
        if (bits, kind) != (8, "float"):
            return f"weights are quantized to {kind} of {bits} bits by compressed-tensors"
        block = weights.get("block_structure")
        if strategy not in ("tensor", "channel") and not (strategy == "block" and block in (None, BLOCK)):
            return f"weights are fp8 with scales by {strategy} {block or ''}".rstrip()
    return ""
