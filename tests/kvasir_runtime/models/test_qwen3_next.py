"""Configs of Qwen3-Next and 3.5 as specs, and layouts of checkpoints of the latter; answers are held to transformers in
runner/test_runner_oracle.py and test_registry.py.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes import checkpoints, family_checkpoints
from fakes.checkpoints import Shape
from fakes.loaded_weights import loaded
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


def with_images(text, folder):
    """The same checkpoint as the hub has it: the text in a part of its own, beside another and a layer that drafts."""
    config = json.loads((text / "config.json").read_text())
    name = config.pop("architectures")[0].removesuffix("ForCausalLM")
    outer = {"architectures": [name + "ForConditionalGeneration"], "vision_config": {}, "text_config": config}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(outer | {"model_type": config["model_type"].removesuffix("_text")}))
    weights = load_file(text / "model.safetensors")
    weights = {key.replace("model.", "model.language_model.", 1): one for key, one in weights.items()}
    weights |= {"model.visual.patch_embed.proj.weight": torch.zeros(3), "mtp.norm.weight": torch.zeros(3)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def experts_apart(folder):
    """A matrix for each expert, as checkpoints in fewer bits have them."""
    weights = load_file(folder / "model.safetensors")
    for key in [key for key in weights if ".experts." in key]:
        stem, _, part = key.rpartition(".")
        for expert, one in enumerate(weights.pop(key)):
            halves = one.chunk(2) if part == "gate_up_proj" else (one,)
            names = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
            weights |= {f"{stem}.{expert}.{n}.weight": rows.clone() for n, rows in zip(names, halves, strict=True)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5-moe"])
def test_each_layout_of_qwen3_5_is_the_same_model(tmp_path, name):
    family_checkpoints.write(tmp_path / "text", name)
    wanted = loaded(tmp_path / "text", "none")
    with_images(tmp_path / "text", tmp_path / "images")
    given = [loaded(tmp_path / "images", "none")]
    if name == "qwen3.5-moe":
        experts_apart(tmp_path / "text")
        given.append(loaded(tmp_path / "text", "none"))
    for tensors in given:
        assert tensors.keys() == wanted.keys()
        assert all(torch.equal(tensors[key], one) for key, one in wanted.items())


def test_gates_and_ups_in_one_tensor_are_pairs(tmp_path):
    family_checkpoints.write(tmp_path, "qwen3.5-moe")
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    save_file(weights | {name: weights[name][:, 1:].clone()}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"tensor {name} has 63 rows of gates and ups, expected pairs"):
        loaded(tmp_path, "none")
