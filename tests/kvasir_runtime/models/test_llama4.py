"""Llama 4's config as a spec; its answers are held to transformers in test_registry.py."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes import family_checkpoints, family_configs, mixture_configs
from fakes.by_hand import Hand, Stream, runner_of
from kvasir_api import forecast, hf_config
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import checked
from kvasir_runtime.models.registry import family_of

CONFIG = family_configs.SIZES | mixture_configs.LLAMA4 | {"model_type": "llama4_text"}


def spec_of(tmp_path, **changes):
    document = CONFIG | {"architectures": ["Llama4ForCausalLM"]} | changes
    document = {name: value for name, value in document.items() if value != ...}
    flat = hf_config.flattened(document)
    assert hf_config.flattened(flat) == flat
    config = checked(tmp_path / "config.json", flat)
    return family_of(config).spec(config)


def test_layers_that_know_no_positions_see_everything_and_grow(tmp_path):
    spec = spec_of(tmp_path)
    assert [(attention.kind, attention.span) for attention in spec.attentions] == [("chunked", 24), ("full", 0)] * 2
    assert (spec.rope.kind, spec.local_rope.kind) == ("none", "default")
    assert (spec.temperature.scale, spec.temperature.step) == (0.3, 16)
    assert spec_of(tmp_path, attn_temperature_tuning=False).temperature is None
    assert spec_of(tmp_path, attn_temperature_tuning=4).temperature is not None
    usual = spec_of(tmp_path, no_rope_layer_interval=..., attention_chunk_size=...)
    assert [attention.span for attention in usual.attentions] == [8192] * 3 + [0]


def test_a_long_sequence_keeps_one_chunk_of_the_layers_with_chunks(tmp_path):
    document = CONFIG | {"architectures": ["Llama4ForCausalLM"], "max_position_embeddings": 1 << 20}
    model = forecast.shape(document)
    assert model.sequence_tokens(100_000, 64) < 51_000


def test_dense_layers_and_experts_have_sizes_of_their_own(tmp_path):
    shapes = parameter_shapes(spec_of(tmp_path, interleave_moe_layer_step=2))
    assert shapes["layers.0.gate_up.weight"] == (2 * 96, 64)
    assert shapes["layers.1.experts.gate_up.weight"] == (4 * 2 * 48, 64)
    assert shapes["layers.1.shared.down.weight"] == (64, 48)
    assert "layers.1.shared_gate" not in shapes
    assert spec_of(tmp_path, moe_layers=[1, 3]).experts.layers == (False, True, False, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size_mlp": ...}, "needs intermediate_size and intermediate_size_mlp"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok 5 is more than the 4 experts"),
        (
            {"layer_types": ["full_attention"] * 4, "no_rope_layers": [1, 0, 1, 0]},
            "no_rope_layers of Llama 4 must be 1",
        ),
        ({"no_rope_layers": [1, 0]}, "layer_types must name full_attention or chunked_attention for each of 4 layers"),
        ({"layer_types": ["sliding_attention"] * 4}, "full_attention or chunked_attention"),
    ],
)
def test_what_no_layer_can_be_built_from_is_refused(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path, **changes)


@torch.inference_mode()
@pytest.mark.parametrize("normed", [True, False])
def test_a_stretch_that_scales_rotations_counts_where_no_norm_follows(tmp_path, normed):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    judge = family_checkpoints.write(tmp_path, "llama4", rope_scaling=yarn, use_qk_norm=normed)
    stream = Stream(prompt=tuple(range(3, 80)))
    Hand(runner_of(tmp_path)).run([stream], 8, chunk=17)
    logits = judge(torch.tensor([stream.tokens]), use_cache=False).logits[0, len(stream.prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(stream.answer)[:, None])[:, 0]
    assert (logits.amax(dim=1) - chosen).max() < 1e-4


def test_the_text_of_a_checkpoint_with_images_answers_as_it_does_alone(tmp_path):
    family_checkpoints.write(tmp_path / "text", "llama4")
    config = json.loads((tmp_path / "text/config.json").read_text())
    del config["architectures"]
    (tmp_path / "images").mkdir()
    outer = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "vision_config": {}}
    (tmp_path / "images/config.json").write_text(json.dumps(outer | {"text_config": config}))
    weights = {f"language_model.{name}": one for name, one in load_file(tmp_path / "text/model.safetensors").items()}
    others = dict.fromkeys(("vision_model.patch.weight", "multi_modal_projector.linear_1.weight"), torch.zeros(3))
    others = {name: one.clone() for name, one in others.items()}
    save_file(weights | others, tmp_path / "images/model.safetensors", metadata={"format": "pt"})
    streams = [Stream(prompt=tuple(range(3, 60))) for _ in range(2)]
    for stream, folder in zip(streams, ("text", "images"), strict=True):
        Hand(runner_of(tmp_path / folder)).run([stream], 8)
    assert streams[0].answer == streams[1].answer
