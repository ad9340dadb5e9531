"""Configs of models with layers of Mamba-2 as specs; their answers are held to transformers in test_registry.py."""

import json
import math

import pytest

from fakes import family_configs
from kvasir_api import forecast, hf_config
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers import sharding
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import checked, read_config
from kvasir_runtime.models.falcon_h1 import FALCON_H1
from kvasir_runtime.models.mamba_hybrids import GRANITE4
from kvasir_runtime.models.nemotron_h import NEMOTRON_H
from kvasir_runtime.models.registry import family_of


def spec_of(tmp_path, name, **changes):
    model = family_configs.MODELS[name]
    given = {field: one for field, one in (family_configs.SIZES | model.config).items() if one is not None}
    document = given | {"model_type": model.family} | changes
    flat = hf_config.flattened(document | {"architectures": [model.architecture]})
    assert hf_config.flattened(flat) == flat
    config = checked(tmp_path / "config.json", flat)
    return family_of(config).spec(config)


@pytest.mark.parametrize(
    ("name", "changes", "kinds"),
    [
        ("granite4", {}, ["state", "full", "state"]),
        ("granite4", {"layer_types": None}, ["state"] * 3),
        ("granite4", {"layer_types": ["linear_attention", "full_attention", "mamba"]}, ["state", "full", "state"]),
        ("bamba", {}, ["state", "full", "state"]),
        ("falcon-h1", {}, ["state", "full", "state", "full"]),
        ("bamba", {"attn_layer_indices": None}, ["state"] * 3),
        ("bamba", {"layers_block_type": ["attention", "mamba", "mamba"]}, ["full", "state", "state"]),
        ("nemotron-h", {}, ["state", "state", "full", "state"]),
        ("nemotron-h", {"layers_block_type": ["attention", "mlp", "mamba"]}, ["full", "state"]),
        ("nemotron-h", {"hybrid_override_pattern": "*-*"}, ["full", "full"]),
        ("nemotron-3", {}, ["state", "full", "state", "state"]),
    ],
)
def test_layers_are_of_the_kinds_that_a_config_names(tmp_path, name, changes, kinds):
    spec = spec_of(tmp_path, name, **changes)
    assert [attention.kind for attention in spec.attentions] == kinds


def test_a_state_has_the_numbers_of_all_heads_and_of_the_convolution(tmp_path):
    spec = spec_of(tmp_path, "granite4")
    channels = 8 * 16 + 2 * 2 * 16
    assert spec.state_bytes == 4 * (3 * channels + 8 * 16 * 16)
    assert parameter_shapes(spec)["layers.0.qkv.weight"] == (8 * 16 + channels + 8, 64)
    assert spec.rope.kind == "none"
    assert spec_of(tmp_path, "granite4-dense").rope.kind == "default"
    assert spec_of(tmp_path, "bamba").rope.rotary_dim == 8


def test_a_mixer_and_the_feed_forward_layer_behind_it_are_one_layer(tmp_path):
    spec = spec_of(tmp_path, "nemotron-h")  # M-M*-M
    assert spec.bare == {1, 3}
    names = set(NEMOTRON_H.places(spec))
    assert {name for name in names if "norm" in name} == {f"backbone.layers.{at}.norm.weight" for at in range(6)} | {
        f"backbone.layers.{at}.mixer.norm.weight" for at in (0, 2, 5)
    } | {"backbone.norm_f.weight"}
    assert {name.split(".")[2] for name in names if ".up_proj" in name} == {"1", "4"}
    assert {name.split(".")[2] for name in names if ".q_proj" in name} == {"3"}
    assert not any(name.startswith(("layers.1.mlp", "layers.1.up")) for name in parameter_shapes(spec))
    shape = forecast.shape(
        family_configs.SIZES | family_configs.MODELS["nemotron-h"].config | {"model_type": "nemotron_h"}
    )
    assert shape.parameters == sum(math.prod(size) for size in parameter_shapes(spec).values())


def test_each_feed_forward_layer_is_of_the_kind_that_a_config_names(tmp_path):
    spec = spec_of(tmp_path, "nemotron-3")  # ME*EM-M
    assert (spec.experts.layers, spec.bare) == ((True, True, False, False), {3})
    shapes = parameter_shapes(spec)
    assert shapes["layers.0.experts.up.weight"] == (8 * 40, 64)
    assert shapes["layers.1.shared.up.weight"] == (56, 64)
    assert shapes["layers.2.up.weight"] == (96, 64)
    names = NEMOTRON_H.places(spec)
    assert names["backbone.layers.3.mixer.experts.7.up_proj.weight"].first_row == 7 * 40
    assert {name.split(".")[2] for name in names if ".experts." in name} == {"1", "3"}


def test_a_layer_with_attention_and_a_state_is_two_behind_one_norm(tmp_path):
    spec = spec_of(tmp_path, "falcon-h1")
    assert (spec.bare, spec.joined) == ({0, 2}, {1, 3})
    assert [group.layers for group in spec.cache_groups] == [(0, 2), (1, 3)]
    names = parameter_shapes(spec)
    assert [name for name in names if name.endswith("_norm")] == [
        *("layers.0.attention_norm", "layers.1.mlp_norm", "layers.2.attention_norm", "layers.3.mlp_norm")
    ]
    theirs = {name.split(".")[2] for name in FALCON_H1.places(spec) if name.startswith("model.layers.")}
    assert theirs == {"0", "1"}
    normed = spec_of(tmp_path, "falcon-h1-normed", mamba_d_ssm=None)  # mamba_expand times hidden_size
    assert (normed.state.value_width, normed.state.row_scales) == (128, ())
    assert "layers.0.state_norm" in parameter_shapes(normed)


def test_factors_go_where_they_are_multiplied(tmp_path):
    spec = spec_of(tmp_path, "falcon-h1")
    assert spec.attention_scale == pytest.approx(0.25 * 0.9 * 0.9 * 0.6)
    assert spec.state.row_scales == pytest.approx((0.75, 0.625, 0.5, 1.0, 0.875))
    assert (spec.embedding_scale, spec.logit_scale) == (5.6, 0.4)
    assert [spec.scales_of(layer) for layer in (0, 1)] == [(0.5, 0.6), (pytest.approx(0.63), 0.6)]
    assert spec.part_scales.gate == 0.88


def test_a_forecast_of_more_bare_layers_than_there_are_counts_no_less_than_none(tmp_path):
    given = family_configs.SIZES | {"model_type": "nemotron_h", "bare_layers": list(range(1000))}
    assert forecast.shape(given).matrices > 0


def test_a_model_of_attention_alone_has_no_state(tmp_path):
    """As Granite 4 Micro, whose config has Mamba-2's fields and no experts in so many fields."""
    attending = {"layer_types": ["attention"] * 2, "num_experts_per_tok": 0}
    spec = spec_of(tmp_path, "granite4-dense", **attending)
    assert (spec.state, spec.state_bytes, spec.block_size(16, 2)) == (None, 0, 16)
    assert spec.experts is None
    assert sharding.shard(spec, Rank(1, 2)).state is None
    assert not any("mamba" in name for name in GRANITE4.places(spec))
    model = family_configs.MODELS["granite4-dense"]
    document = family_configs.SIZES | model.config | {"model_type": model.family} | attending
    shape = forecast.shape(document | {"architectures": [model.architecture]})
    assert (shape.state_bytes, shape.group_layers) == (0, (2,))
    names = parameter_shapes(spec)
    assert shape.parameters == sum(math.prod(size) for size in names.values())


def test_a_model_of_states_alone_has_blocks_as_large_as_one(tmp_path):
    """As Codestral Mamba, whose config names no positions, no heads of attention and no feed-forward layer."""
    document = {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "vocab_size": 32768}
    document |= {"hidden_size": 4096, "num_hidden_layers": 64, "time_step_limit": [0.0, "Infinity"]}
    document |= {"torch_dtype": "bfloat16"}
    flat = hf_config.flattened(document)
    assert hf_config.flattened(flat) == flat
    config = checked(tmp_path / "config.json", flat)
    spec = family_of(config).spec(config)
    assert [group.layers for group in spec.cache_groups] == [tuple(range(64))]
    assert spec.state_bytes == 4 * (3 * (8192 + 2 * 8 * 128) + 128 * 64 * 128)
    assert spec.block_size(16, 2) == 144  # of 32 KiB, those of keys and values as wide as a state
    shape = forecast.shape(document)
    assert (shape.parameters, shape.max_positions) == (7_285_403_648, 262_144)
    assert shape.parameters == sum(math.prod(size) for size in parameter_shapes(spec).values())
    assert shape.sequence_tokens(100_000, 1) == 3 * 144
    part = sharding.shard(spec, Rank(1, 2))
    assert (part.state.key_heads, part.state.value_heads) == (4, 64)


def test_groups_are_divided_among_ranks_and_one_is_not(tmp_path):
    part = sharding.shard(spec_of(tmp_path, "granite4"), Rank(1, 2))
    assert (part.state.key_heads, part.state.value_heads) == (1, 4)
    with pytest.raises(ValueError, match="1 key heads of layers with a state cannot be divided among 2 ranks"):
        sharding.shard(spec_of(tmp_path, "bamba"), Rank(0, 2))


def test_steps_without_bounds_are_served_however_infinity_is_written(tmp_path):
    for limit in (None, [0.0, {"__float__": "Infinity"}], [0, "Infinity"]):
        assert spec_of(tmp_path, "bamba", time_step_limit=limit).state is not None


@pytest.mark.parametrize("name", ["bamba", "nemotron-h"])
def test_infinity_is_read_as_python_writes_it(tmp_path, name):
    """Which is no JSON: bounds of Mamba-2's steps are written so."""
    model = family_configs.MODELS[name]
    document = family_configs.SIZES | model.config | {"model_type": model.family, "architectures": [model.architecture]}
    text = json.dumps(document | {"time_step_limit": [0.0, math.inf]})
    assert "Infinity" in text
    (tmp_path / "config.json").write_text(text)
    config = read_config(tmp_path)
    assert config.time_step_limit == [0.0, "Infinity"]
    assert family_of(config).spec(config).state is not None
    for wrong in (text.replace('"hidden_size": 64', '"hidden_size": NaN'), text[:-1]):
        (tmp_path / "config.json").write_text(wrong)
        with pytest.raises(ModelError, match=r"config\.json: "):
            read_config(tmp_path)
    for wrong in (
        "[" * 100_000 + "Infinity",
        '{"a": Infinity, "b": ' + "9" * 5000 + "}",
        '{"a": NaN, "b": 1' + "0" * 30 + "}",
    ):
        (tmp_path / "config.json").write_text(wrong)
        with pytest.raises(ModelError):
            read_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bamba", {"mamba_n_groups": 3}, "mamba_n_groups 3 does not divide mamba_n_heads 8"),
        ("bamba", {"mamba_d_head": 8}, "mamba_n_heads 8 of mamba_d_head 8 are not mamba_expand 2 times hidden_size 64"),
        ("bamba", {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
        ("bamba", {"mamba_n_heads": 0}, "linear_num_value_heads"),
        ("falcon-h1", {"mamba_d_head": 16}, "mamba_n_heads 8 of mamba_d_head 16 are not mamba_d_ssm 96"),
        ("falcon-h1", {"mamba_d_ssm": 0}, "mamba_d_ssm"),
        ("falcon-h1", {"attention_bias": True}, "attention_bias True of Falcon-H1 is not supported"),
        ("falcon-h1", {"mamba_proj_bias": True}, "mamba_proj_bias True of Falcon-H1 is not supported"),
        ("falcon-h1", {"projectors_bias": True}, "projectors_bias True of Falcon-H1 is not supported"),
        ("falcon-h1", {"mamba_rms_norm": True}, "mamba_norm_before_gate True with mamba_rms_norm True is not"),
        ("falcon-h1", {"joined_layers": [0]}, "every second layer of Falcon-H1 is joined to the one before it"),
        ("falcon-h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers"),
        ("falcon-h1", {"num_hidden_layers": 600}, "every second layer"),
        ("granite4", {"layer_types": ["mamba"]}, "layer_types must name .* for each of 3 layers"),
        ("granite4", {"position_embedding_type": "alibi"}, "position_embedding_type alibi is not supported"),
        ("granite4", {"shared_intermediate_size": None}, "needs intermediate_size and shared_intermediate_size"),
        ("granite4", {"mamba_expand": 10**9}, "mamba_expand"),
        ("mamba2", {"head_dim": 8}, "mamba_n_heads 8 of mamba_d_head 8 are not mamba_expand 2 times hidden_size 64"),
        ("mamba2", {"n_groups": 3}, "mamba_n_groups 3 does not divide mamba_n_heads 8"),
        ("mamba2", {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
        ("mamba2", {"hidden_act": "gelu"}, "hidden_act gelu is not supported; expected silu"),
        ("mamba2", {"layer_types": ["full_attention"] * 3}, "layer_types of Mamba-2 names layers that attend"),
        ("mamba2", {"num_heads": "8"}, "linear_num_value_heads"),
        ("nemotron-h", {"hybrid_override_pattern": "M-E"}, "not two feed-forward layers"),
        ("nemotron-h", {"hybrid_override_pattern": "-M"}, "not two feed-forward layers"),
        ("nemotron-h", {"hybrid_override_pattern": "M--"}, "not two feed-forward layers"),
        ("nemotron-h", {"hybrid_override_pattern": 3}, "not two feed-forward layers"),
        ("nemotron-h", {"hybrid_override_pattern": "M-X"}, "layer_types must name"),
        ("nemotron-h", {"hybrid_override_pattern": None, "bare_layers": [9]}, "bare_layers names more layers"),
        ("nemotron-h", {"hybrid_override_pattern": None, "bare_layers": "all"}, "bare_layers"),
        ("nemotron-3", {"mlp_bias": True}, "mlp_bias True of Nemotron 3 is not supported"),
        ("nemotron-3", {"moe_intermediate_size": None}, "Nemotron 3 needs moe_intermediate_size"),
        ("nemotron-h", {"mlp_hidden_act": "gelu"}, "hidden_act gelu is not supported; expected relu2"),
    ],
)
def test_what_no_layer_can_be_built_from_is_refused(tmp_path, name, changes, message):
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path, name, **changes)
