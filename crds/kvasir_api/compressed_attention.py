"""Layers that hold less of a sequence than keys and values of every head: their weights, and what they hold.

Pure arithmetic on the fields of a config.json, for the forecast. States are those of Qwen3-Next and 3.5, a short convolution
and the gated delta rule, and of Mamba-2; latent attention is that of DeepSeek-V2.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvasir_api import layer_types
from kvasir_api.cache_groups import CacheGroup
from kvasir_api.hf_config import count, count_or_zero


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Of one layer of this kind the numbers of its matrices and of what is never quantized; "" and 0 without.

    state_bytes: of its state. latent_row: numbers of one token in it.
    """

    kind: Literal["state", "latent", ""] = ""
    matrices: int = 0
    others: int = 0
    state_bytes: int = 0
    latent_row: int = 0


def weights(config: Mapping[str, Any], groups: Iterable[CacheGroup]) -> CompressedAttention:
    """Of a flattened config whose layers form these groups. Raises ValueError that names a missing or senseless field."""
    kinds = {group.attention.kind for group in groups}
    if "state" in kinds:
        return _states(config)
    return _latents(config) if "latent" in kinds else CompressedAttention()


def _states(config: Mapping[str, Any]) -> CompressedAttention:
    key_heads, heads = count(config, "linear_num_key_heads", 16), count(config, "linear_num_value_heads", 32)
    key_dim, dim = count(config, "linear_key_head_dim", 128), count(config, "linear_value_head_dim", 128)
    channels, width = 2 * key_heads * key_dim + heads * dim, count(config, "linear_conv_kernel_dim", 4)
    hidden, mamba = count(config, "hidden_size"), config.get("model_type") in layer_types.MAMBAS
    rows = channels + heads * dim + (1 if mamba else 2) * heads
    others = channels * width + 2 * heads + dim
    if mamba:
        others = channels * (width + (1 if config.get("mamba_conv_bias", True) else 0)) + 3 * heads
        others += heads * dim if config.get("mamba_rms_norm", True) else 0
        others += rows + hidden if config.get("mamba_proj_bias") else 0
    return CompressedAttention(
        kind="state",
        matrices=hidden * (rows + heads * dim),
        others=others,
        state_bytes=4 * ((width - 1) * channels + heads * key_dim * dim),
    )


def _latents(config: Mapping[str, Any]) -> CompressedAttention:
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    rank, key, value = (count(config, name) for name in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"))
    turned = count(config, "qk_rope_head_dim", 64)
    query_rank = count_or_zero(config, "q_lora_rank")
    query = heads * (key + turned)
    first = hidden * query_rank + query_rank * query if query_rank else hidden * query
    return CompressedAttention(
        kind="latent",
        matrices=first + hidden * (rank + turned + heads * value),
        others=rank + query_rank + heads * (key + value) * rank,
        latent_row=rank + turned,
    )
