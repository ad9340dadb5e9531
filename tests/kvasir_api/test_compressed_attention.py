"""Weights of layers with states and latents, as transformers' own models have them."""

from typing import Any

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

from kvasir_api import forecast

LATENT = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400, "max_position_embeddings": 163840,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""DeepSeek-V2-Lite."""
STATES = {
    "model_type": "qwen3_next", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 48,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 3, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": 1536}, {"v_head_dim": 96}, {"n_shared_experts": 1}])
def test_latents_are_counted_as_the_library_makes_them(changes: dict[str, Any]) -> None:
    config = LATENT | changes
    with torch.device("meta"):
        model = DeepseekV2ForCausalLM(DeepseekV2Config(**config))
    shape = forecast.shape(config)
    assert shape.parameters == sum(tensor.numel() for tensor in model.parameters())
    assert shape.kv_bytes_per_token("bfloat16") == 27 * 576 * 2
    assert shape.kv_bytes_per_token("int8") == 27 * (576 + 4)


@pytest.mark.parametrize(
    "changes", [{}, {"full_attention_interval": 2}, {"linear_conv_kernel_dim": 5}, {"linear_num_value_heads": 2}]
)
def test_states_are_counted_as_the_library_makes_them(changes: dict[str, Any]) -> None:
    config = STATES | changes
    with torch.device("meta"):
        model = Qwen3NextForCausalLM(Qwen3NextConfig(**config))
    assert forecast.shape(config).parameters == sum(tensor.numel() for tensor in model.parameters())


@pytest.mark.parametrize("field", ["kv_lora_rank", "qk_nope_head_dim", "v_head_dim"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        forecast.shape({name: value for name, value in LATENT.items() if name != field})
