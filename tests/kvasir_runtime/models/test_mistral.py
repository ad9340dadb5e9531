"""Ministral 3: queries that grow behind the positions of training; its answers are also held in test_registry.py."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes import family_checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.family_configs import YARN_OF_MINISTRAL
from kvasir_api import hf_config
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.layers.layer_specs import TemperatureSpec
from kvasir_runtime.models.config import checked
from kvasir_runtime.models.registry import family_of

PROMPT = tuple(range(3, 80))


def spec_of(**changes: Any) -> Any:
    document = {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", "vocab_size": 320}
    document |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4} | changes
    config = checked(Path("config.json"), hf_config.flattened(document))
    return family_of(config).spec(config)


def below_the_best(judge: torch.nn.Module, stream: Stream) -> float:
    logits = judge(torch.tensor([stream.tokens]), use_cache=False).logits[0, len(stream.prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(stream.answer)[:, None])[:, 0]
    return float((logits.amax(dim=1) - chosen).max())


@torch.inference_mode()
def test_the_text_of_a_checkpoint_with_images_grows_as_it_does_alone(tmp_path: Path) -> None:
    judge = family_checkpoints.write(tmp_path / "text", "ministral3")
    config = json.loads((tmp_path / "text/config.json").read_text())
    del config["architectures"]
    (tmp_path / "images").mkdir()
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "vision_config": {}}
    (tmp_path / "images/config.json").write_text(json.dumps(outer | {"text_config": config}))
    weights = {f"language_model.{name}": one for name, one in load_file(tmp_path / "text/model.safetensors").items()}
    weights |= {"vision_tower.patch.weight": torch.zeros(3), "multi_modal_projector.linear_1.weight": torch.zeros(3)}
    save_file(weights, tmp_path / "images/model.safetensors", metadata={"format": "pt"})
    stream = Stream(prompt=PROMPT)
    Hand(runner_of(tmp_path / "images")).run([stream], 12, chunk=17)
    assert below_the_best(judge, stream) < 1e-4


@torch.inference_mode()
def test_queries_of_layers_with_a_window_grow_too(tmp_path: Path) -> None:
    judge = family_checkpoints.write(tmp_path, "ministral3", sliding_window=24)
    stream = Stream(prompt=PROMPT)
    Hand(runner_of(tmp_path)).run([stream], 12, chunk=17)
    assert below_the_best(judge, stream) < 1e-4


@torch.inference_mode()
def test_without_growth_the_same_weights_answer_otherwise(tmp_path: Path) -> None:
    judge = family_checkpoints.write(tmp_path, "ministral3")
    stream = Stream(prompt=PROMPT)
    Hand(runner_of(tmp_path, hf_overrides=json.dumps({"rope_parameters": YARN_OF_MINISTRAL}))).run([stream], 12)
    assert below_the_best(judge, stream) > 1e-2


@pytest.mark.skipif(library() is None, reason="this processor or installation has no C++ kernels")
@pytest.mark.parametrize(("longest", "is_one_call"), [(16, True), (17, False)])
def test_one_call_computes_lengths_within_which_nothing_grows(tmp_path: Path, longest: int, is_one_call: bool) -> None:
    family_checkpoints.write(tmp_path, "ministral3", head_dim=32)
    runner = runner_of(tmp_path, ops=cpu_ops(), dtype=torch.bfloat16, longest=longest)
    assert (runner._model.step is not None) == is_one_call


def test_a_config_that_names_no_rotary_embedding_has_the_familys_own() -> None:
    spec = spec_of()
    assert (spec.rope.kind, spec.rope.theta, spec.rope.factor, spec.head_dim) == ("yarn", 1e6, 16.0, 128)
    assert spec.rope.attention_factor == 1.0
    assert spec.temperature == TemperatureSpec(scale=0.1, step=16_384, first=0)


@pytest.mark.parametrize("beta", [None, 0.0])
def test_without_a_factor_nothing_grows(beta: float | None) -> None:
    assert spec_of(rope_parameters=YARN_OF_MINISTRAL | {"llama_4_scaling_beta": beta}).temperature is None


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"llama_4_scaling_beta": 0.1}, "llama_4_scaling_beta needs original_max_position_embeddings"),
        (YARN_OF_MINISTRAL | {"llama_4_scaling_beta": -1.0}, "llama_4_scaling_beta"),
    ],
)
def test_a_growth_that_cannot_be_is_refused(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(rope_parameters=rope)
