"""Angles of every rotary variant equal those of transformers for a sequence of the longest length."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kvasir_runtime.layers import rotary
from kvasir_runtime.layers.spec import RopeSpec
from kvasir_runtime.models.config import ModelConfig, RopeConfig
from kvasir_runtime.models.rope import rope_spec

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
SHORT, LONG = [1.0 + pair / 64 for pair in range(32)], [2.0 + pair for pair in range(32)]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
SCALINGS = [
    ({"rope_type": "default"}, 4096),
    ({"rope_type": "linear", "factor": 4.0}, 4096),
    ({"rope_type": "llama3", **LLAMA3}, 4096),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
    # beyond max_position_embeddings, as a model card describes it
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 0.7}, 4096),
    (
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 128,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
        },
        4096,
    ),
    ({"rope_type": "dynamic", "factor": 2.0}, 1000),
    ({"rope_type": "dynamic", "factor": 2.0}, 4096),
    ({"rope_type": "dynamic", "factor": 2.0}, 8192),
    (LONGROPE | {"original_max_position_embeddings": 1024}, 4096),
    (LONGROPE | {"original_max_position_embeddings": 1024}, 1024),
    (LONGROPE | {"original_max_position_embeddings": 1024, "factor": 8.0}, 4096),
    (LONGROPE | {"original_max_position_embeddings": 1024, "attention_factor": 1.5}, 4096),
]


@pytest.mark.parametrize(("scaling", "longest"), SCALINGS, ids=lambda value: str(value)[:40])
def test_cos_and_sin_equal_those_of_the_oracle(scaling: dict[str, object], longest: int) -> None:
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 8}
    oracle = LlamaRotaryEmbedding(
        LlamaConfig(**sizes, max_position_embeddings=4096, rope_parameters={"rope_theta": 50_000.0, **scaling})
    )
    positions = torch.arange(longest)
    cos, sin = oracle(torch.zeros(1), positions[None])
    config = ModelConfig(
        architectures=("LlamaForCausalLM",),
        intermediate_size=8,
        max_position_embeddings=4096,
        rope_parameters=RopeConfig(rope_theta=50_000.0, **scaling),
        **sizes,
    )
    ours_cos, ours_sin = rotary.tables(rope_spec(config), 64, longest, torch.float32)
    torch.testing.assert_close(ours_cos, cos[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(ours_sin[:, 32:], sin[0, :, 32:], atol=1e-3, rtol=0)
    torch.testing.assert_close(ours_sin[:, :32], -sin[0, :, :32], atol=1e-3, rtol=0)


def test_dimensions_that_do_not_turn_have_cos_1_and_sin_0() -> None:
    yarn = RopeSpec(kind="yarn", factor=4.0, original_max_position=64)
    whole = rotary.tables(yarn, 16, 32, torch.float32)
    part = rotary.tables(
        RopeSpec(kind="yarn", factor=4.0, original_max_position=64, rotary_dim=16), 24, 32, torch.float32
    )
    for ours, theirs, fixed in zip(part, whole, (1.0, 0.0), strict=True):
        first, second = ours[:, :12], ours[:, 12:]
        assert torch.equal(first[:, :8], theirs[:, :8])
        assert torch.equal(second[:, :8], theirs[:, 8:])
        assert (first[:, 8:].abs() == fixed).all()
        assert (second[:, 8:] == fixed).all()
