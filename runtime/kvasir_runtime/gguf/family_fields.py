"""Fields of a config.json that only some architectures of GGUF files have. Called by `hf_config`. Pure."""

from typing import Any, Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf.reader import GgufFile

TURNED_IN_PART: Final = ("phi3", "glm4")
"""Heads of which rope.dimension_count dimensions turn."""
_NUMBERS: Final[dict[str, dict[str, str]]] = {
    "gemma2": {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "granite": {
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    },
    "command-r": {"logit_scale": "logit_scale"},
    "cohere2": {"logit_scale": "logit_scale"},
}
"""Our fields, and the keys behind the architecture's name."""
_WITH_WINDOW: Final = ("gemma2", "gemma3", "phi3", "cohere2", "starcoder2")
_LARGEST_GEMMA: Final = {"gemma2": 46, "gemma3": 62}
"""Layers of the models with 27 billion parameters, whose scores are scaled by the width of the embedding."""


def fields(file: GgufFile, arch: str, *, head_dim: int) -> dict[str, Any]:
    """Those that the file has; a default that the family means stays with the family."""
    found: dict[str, Any] = {}
    for field, key in _NUMBERS.get(arch, {}).items():
        if (value := file.number(f"{arch}.{key}", 0.0)) > 0:
            found[field] = value
    if arch == "command-r":  # R+ has norms of queries and keys, and no key that says so
        found["use_qk_norm"] = "blk.0.attn_q_norm.weight" in file.tensors
    window = file.integer(f"{arch}.attention.sliding_window", 0) if arch in _WITH_WINDOW else 0
    if window:
        found["sliding_window"] = window
    if arch in TURNED_IN_PART:
        found["partial_rotary_factor"] = file.integer(f"{arch}.rope.dimension_count", head_dim) / head_dim
    if arch in _LARGEST_GEMMA:
        largest = file.integer(f"{arch}.block_count") == _LARGEST_GEMMA[arch]
        width = file.integer(f"{arch}.embedding_length") // file.integer(f"{arch}.attention.head_count")
        found["query_pre_attn_scalar"] = width if largest else head_dim
    return found


def longrope(file: GgufFile, arch: str) -> dict[str, Any] | None:
    """Rotary scaling of Phi, whose factors are tensors; None where the file has none. Raises ModelError."""
    long, short = (file.floats(f"rope_factors_{kind}.weight") for kind in ("long", "short"))
    if long is None and short is None:
        return None
    if long is None or short is None:
        raise ModelError(f"{file.path}: of rope_factors_long.weight and rope_factors_short.weight one is missing")
    positions = file.integer(f"{arch}.context_length")
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": list(long),
        "short_factor": list(short),
        "original_max_position_embeddings": file.integer(f"{arch}.rope.scaling.original_context_length", positions),
    }
    attention = file.number(f"{arch}.rope.scaling.attn_factor", 0.0)
    return scaling | ({"attention_factor": attention} if attention > 0 else {})
