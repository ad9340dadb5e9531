"""Qwen3-Next's config as a spec; its answers are held to transformers in runner/test_runner_oracle.py."""

import json

import pytest

from fakes import checkpoints
from fakes.checkpoints import Shape
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of


def spec_of(folder, left_out=(), **extra):
    config = checkpoints.config_json(Shape(family="qwen3_next", num_layers=8, extra=extra))
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in left_out}))
    read = read_config(folder)
    return family_of(read).spec(read)


def test_every_fourth_layer_attends_and_a_quarter_of_each_head_turns_where_nothing_is_told(tmp_path):
    spec = spec_of(tmp_path, ("layer_types", "partial_rotary_factor"))
    assert [attention.kind for attention in spec.attentions] == (["state"] * 3 + ["full"]) * 2
    assert spec.rope.rotary_dim == 4
    assert [len(group.layers) for group in spec.cache_groups] == [2, 2, 2, 2]
    other = spec_of(tmp_path, ("layer_types",), full_attention_interval=2)
    assert [attention.kind for attention in other.attentions] == ["state", "full"] * 4


def test_a_block_holds_a_state_or_as_many_bytes_of_keys_and_values(tmp_path):
    spec = spec_of(tmp_path)
    numbers = 3 * (2 * 2 * 16 + 4 * 8) + 4 * 16 * 8  # three inputs of the convolution, and a matrix for each value head
    assert spec.state_bytes == 4 * numbers
    token_bytes = 2 * 2 * 16 * 4
    size = spec.block_size(8, 4)
    assert size % 16 == 0
    assert 0 <= size * token_bytes - spec.state_bytes < 16 * token_bytes
    assert spec.kv_bytes_per_token(4, block_size=size) == 4 * token_bytes * len(spec.cache_groups)
    assert spec.block_size(64, 4) == 64


def test_only_attending_layers_have_norms_of_heads(tmp_path):
    shapes = parameter_shapes(spec_of(tmp_path))
    assert shapes["layers.1.qkv.weight"] == (2 * 64 + 2 * 32, 64)
    assert shapes["layers.1.query_norm"] == (16,)
    assert shapes["layers.0.qkv.weight"] == (2 * 32 + 2 * 32 + 2 * 4, 64)
    assert "layers.0.query_norm" not in shapes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_key_heads": 3}, "linear_num_key_heads 3 does not divide linear_num_value_heads 4"),
        ({"shared_expert_intermediate_size": None}, "needs moe_intermediate_size and shared_expert_intermediate_size"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim"),
        ({"layer_types": ["sliding_attention"] * 8}, "layer_types must name full_attention or linear_attention"),
    ],
)
def test_what_no_layer_can_be_built_from_is_refused(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path, **changes)
