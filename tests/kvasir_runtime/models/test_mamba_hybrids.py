"""Configs of models with layers of Mamba-2 as specs; their answers are held to transformers in test_registry.py."""

import json
import math

import pytest

from fakes import family_configs
from kvasir_api import forecast, hf_config
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers import sharding
from kvasir_runtime.layers.spec import Rank, parameter_shapes
from kvasir_runtime.models.config import checked, read_config
from kvasir_runtime.models.mamba_hybrids import GRANITE4
from kvasir_runtime.models.nemotron_h import NEMOTRON_H
from kvasir_runtime.models.registry import family_of


def spec_of(tmp_path, name, **changes):
    model = family_configs.MODELS[name]
    document = family_configs.SIZES | model.config | {"model_type": model.family} | changes
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
        ("bamba", {"attn_layer_indices": None}, ["state"] * 3),
        ("bamba", {"layers_block_type": ["attention", "mamba", "mamba"]}, ["full", "state", "state"]),
        ("nemotron-h", {}, ["state", "state", "full", "state"]),
        ("nemotron-h", {"layers_block_type": ["attention", "mlp", "mamba"]}, ["full", "state"]),
        ("nemotron-h", {"hybrid_override_pattern": "*-*"}, ["full", "full"]),
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
        ("granite4", {"layer_types": ["mamba"]}, "layer_types must name .* for each of 3 layers"),
        ("granite4", {"position_embedding_type": "alibi"}, "position_embedding_type alibi is not supported"),
        ("granite4", {"shared_intermediate_size": None}, "needs intermediate_size and shared_intermediate_size"),
        ("granite4", {"mamba_expand": 10**9}, "mamba_expand"),
        ("nemotron-h", {"hybrid_override_pattern": "M-ME"}, "not experts, nor two feed-forward layers"),
        ("nemotron-h", {"hybrid_override_pattern": "-M"}, "not experts, nor two feed-forward layers"),
        ("nemotron-h", {"hybrid_override_pattern": "M--"}, "not experts, nor two feed-forward layers"),
        ("nemotron-h", {"hybrid_override_pattern": 3}, "not experts, nor two feed-forward layers"),
        ("nemotron-h", {"hybrid_override_pattern": "M-X"}, "layer_types must name"),
        ("nemotron-h", {"hybrid_override_pattern": None, "bare_layers": [9]}, "bare_layers names more layers"),
        ("nemotron-h", {"hybrid_override_pattern": None, "bare_layers": "all"}, "bare_layers"),
        ("nemotron-h", {"mlp_hidden_act": "gelu"}, "hidden_act gelu is not supported; expected relu2"),
    ],
)
def test_what_no_layer_can_be_built_from_is_refused(tmp_path, name, changes, message):
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path, name, **changes)
