"""Frequencies of every rotary variant equal those of transformers."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kvasir_runtime.layers import rotary
from kvasir_runtime.models.config import ModelConfig, RopeConfig, rope_spec

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
SCALINGS = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 0.7},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 128,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_cos_and_sin_equal_those_of_the_oracle(scaling: dict[str, object]) -> None:
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 8}
    oracle = LlamaRotaryEmbedding(
        LlamaConfig(**sizes, max_position_embeddings=4096, rope_parameters={"rope_theta": 50_000.0, **scaling})
    )
    positions = torch.arange(4096)
    cos, sin = oracle(torch.zeros(1), positions[None])
    config = ModelConfig(
        architectures=("LlamaForCausalLM",),
        intermediate_size=8,
        max_position_embeddings=4096,
        rope_parameters=RopeConfig(rope_theta=50_000.0, **scaling),
        **sizes,
    )
    ours_cos, ours_sin = rotary.tables(rope_spec(config), 64, 4096, torch.float32)
    torch.testing.assert_close(ours_cos, cos[0], atol=2e-4, rtol=0)
    torch.testing.assert_close(ours_sin[:, 32:], sin[0, :, 32:], atol=2e-4, rtol=0)
    torch.testing.assert_close(ours_sin[:, :32], -sin[0, :, :32], atol=2e-4, rtol=0)
