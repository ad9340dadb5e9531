"""Mixtures of experts on a CPU's own kernels: answers, company, quantized experts, and what a config may say."""

import gc
import json
import random
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.oracle import Oracle, oracle_of
from kvasir_api.cache_groups import sliding
from kvasir_api.options import Quantization
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.quantized import QuantFormat
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of

SMALL = Shape(dtype=torch.bfloat16, num_layers=3)
FAMILIES = {
    "mixtral": replace(SMALL, family="mixtral", seed=1, extra={"sliding_window": 24}),
    "qwen2-moe": replace(SMALL, family="qwen2_moe", seed=2, top_k=4),
    "qwen3-moe": replace(
        SMALL, family="qwen3_moe", seed=3, head_dim=24, num_experts=16, extra={"mlp_only_layers": [1]}
    ),
}
each_family = pytest.mark.parametrize("name", FAMILIES)
# Of a logit's spread over the vocabulary, for nine tokens of ten: 8 bits of mantissa send one now and then to another
# expert that was nearly chosen.
NEARLY = 0.06


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, FAMILIES[name])


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed * 7 + length).choices(range(3, 320), k=length))


def off_by(root: Path, name: str, stream: Stream) -> list[float]:
    """How far below the best token's logit each of the answer is, in units of the logits' spread."""
    logits: Tensor = oracle_of(folder_of(root, name)).logits(stream.tokens)[len(stream.prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(stream.answer)[:, None])[:, 0]
    return ((logits.amax(dim=1) - chosen) / logits.std(dim=1)).tolist()


@each_family
def test_answers_are_the_best_whatever_the_company(root: Path, name: str) -> None:
    prompts = [prompt(length, 5) for length in (1, 17, 130, 64, 5)]
    answers = []
    for together in (True, False):
        runner = runner_of(folder_of(root, name), ops=cpu_ops(), dtype=torch.bfloat16)
        assert runner._model.step is not None, "not one call of C++"
        streams = [Stream(prompt=one) for one in prompts]
        hand = Hand(runner, seed=int(together))
        for group in [streams] if together else [[stream] for stream in streams]:
            hand.run(group, 10, chunk=40)
        answers.append([stream.answer for stream in streams])
        off = sorted(error for stream in streams for error in off_by(root, name, stream))
        assert off[len(off) * 9 // 10] < NEARLY
    assert answers[0] == answers[1]


def test_experts_as_they_were_read_are_dropped_when_they_are_packed() -> None:
    found = library()
    if found is None:
        pytest.skip("no C++ kernels for bfloat16 here")
    tensors = [torch.zeros(shape, dtype=torch.bfloat16) for shape in ((4, 16), (4 * 16, 16), (4 * 16, 8))]
    kept = [weakref.ref(tensor) for tensor in tensors]
    layer = cpu_ops().moe(tensors.pop(0), tensors.pop(0), tensors.pop(0), Routing(top_k=2, renormalised=True))
    gc.collect()
    assert [weight() is None for weight in kept] == [True] * 3
    assert layer(torch.ones(3, 16, dtype=torch.bfloat16)).shape == (3, 16)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_quantized_experts_answer_as_their_rounded_weights(
    tmp_path: Path, quantization: Quantization, family: str
) -> None:
    shape = Shape(family=family, shared_size=64)
    folder = checkpoints.write(tmp_path / "model", shape)
    stream = Stream(prompt=prompt(60))
    Hand(runner_of(folder, quantization=quantization, ops=CPU)).run([stream], 16)
    assert rounded(folder, tmp_path / "rounded", quantization).wrong_tokens(stream.prompt, stream.answer) == []


def rounded(folder: Path, target: Path, quantization: Quantization) -> Oracle:
    """transformers with a checkpoint whose matrices went through our formats and back; routers and gates did not."""
    family = json.loads((folder / "config.json").read_text())["model_type"]
    checkpoints.write(target, Shape(family=family, shared_size=64))
    weights = load_file(folder / "model.safetensors")
    for name, weight in weights.items():
        head = name == "lm_head.weight"
        if head or name.split(".")[-2] in ("w1", "w2", "w3") or name.endswith("_proj.weight"):
            format_ = QuantFormat(bits=8 if head or quantization == "int8" else 4)
            weights[name] = quantized.dequantized(cpu_ops().quantize(weight, format_))
    checkpoints.write_weights(target, weights)
    return Oracle(target)


def spec_of(tmp_path: Path, family: str, **changed: Any):
    config = checkpoints.config_json(Shape(family=family))
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in (config | changed).items() if v is not None}))
    read = read_config(tmp_path)
    return family_of(read).spec(read)


@pytest.mark.parametrize(
    ("family", "changed", "words"),
    [
        ("mixtral", {"num_local_experts": None}, "needs num_experts"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
        ("qwen2_moe", {"shared_expert_intermediate_size": None}, "needs moe_intermediate_size and shared_expert"),
        ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 8}, "needs layer_types"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "needs moe_intermediate_size"),
        ("qwen3_moe", {"num_experts": "many"}, "num_experts"),
    ],
)
def test_what_a_config_lacks_is_named(tmp_path: Path, family: str, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        spec_of(tmp_path, family, **changed)


@pytest.mark.parametrize(
    ("family", "changed", "field", "want"),
    [
        ("qwen3_moe", {"decoder_sparse_step": 2}, "layers", (False, True)),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "layers", (False, True)),
        ("qwen3_moe", {"norm_topk_prob": False}, "renormalised", False),
        ("qwen3_moe", {"num_experts": None, "num_local_experts": 5}, "num_experts", 5),
        ("qwen3_moe", {"num_experts_per_tok": 3}, "top_k", 3),
        ("qwen2_moe", {"moe_intermediate_size": 40}, "intermediate_size", 40),
        ("qwen2_moe", {"shared_expert_intermediate_size": 56}, "shared_size", 56),
        ("mixtral", {}, "renormalised", True),
    ],
)
def test_fields_of_a_config_are_followed(
    tmp_path: Path, family: str, changed: dict[str, Any], field: str, want: object
) -> None:
    assert getattr(spec_of(tmp_path, family, **changed).experts, field) == want


def test_windows_and_biases_of_a_config_are_followed(tmp_path: Path) -> None:
    slides = {"use_sliding_window": True, "sliding_window": 8}
    kinds = ["sliding_attention", "full_attention"]
    assert spec_of(tmp_path, "qwen3_moe", **slides).attentions == tuple(map(sliding, (8, 8)))
    assert spec_of(tmp_path, "qwen2_moe", **slides, layer_types=kinds).attentions == tuple(map(sliding, (8, 0)))
    assert spec_of(tmp_path, "mixtral", sliding_window=9).attentions == tuple(map(sliding, (9, 9)))
    assert not spec_of(tmp_path, "qwen2_moe", qkv_bias=False).qkv_bias
    assert spec_of(tmp_path, "qwen3_moe", attention_bias=True).output_bias
