"""Weights of GGUF files: each type decodes as the reference implementation does, and whole models give its logits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from fakes import checkpoints, family_checkpoints, gguf_families, ggufs
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.oracle import Oracle
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import dequantized
from kvasir_runtime.models.config import RopeConfig, read_config
from kvasir_runtime.weights import gguf_checkpoint, gguf_dequant
from kvasir_runtime.weights.gguf_dequant import KEPT
from kvasir_runtime.wire import SamplingConfig

WIDE = Shape(hidden_size=256, num_layers=2, num_heads=8, num_kv_heads=2, head_dim=32, intermediate_size=512)
K_M = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "attn_k": "Q5_K", "token_embd": "Q8_0"}
MODELS: dict[str, tuple[Shape, str, dict[str, str]]] = {
    "llama-f32": (Shape(), "F32", {}),
    "llama-f16": (Shape(seed=1), "F16", {}),
    "llama-bf16-tied": (Shape(seed=2, tied=True, num_kv_heads=1), "BF16", {}),
    "llama-q8_0": (Shape(seed=3), "Q8_0", {}),
    "llama-q4_k_m": (WIDE, "Q4_K", K_M),
    "llama-biased": (replace(WIDE, extra={"attention_bias": True}, seed=4), "Q8_0", {}),
    "mistral-q4_0": (Shape(family="mistral", seed=5), "Q4_0", {}),
    "qwen2-q8_0": (Shape(family="qwen2", tied=True, seed=6), "Q8_0", {}),
    "qwen2-q4_k_m": (replace(WIDE, family="qwen2", seed=7), "Q4_K", K_M),
    "qwen3-bf16": (Shape(family="qwen3", head_dim=24, seed=8), "BF16", {}),
    "qwen3-q6_k": (replace(WIDE, family="qwen3", seed=9), "Q6_K", {}),
    "llama-q4_1": (Shape(seed=13), "Q4_1", {}),
    "llama-q5_0": (Shape(seed=14), "Q5_0", {"ffn": "Q5_1"}),
    "llama-q2_k": (replace(WIDE, seed=15), "Q2_K", {"attn_v": "Q3_K", "ffn_down": "Q3_K"}),
    "qwen2-iq4": (replace(WIDE, family="qwen2", seed=16), "IQ4_XS", {"ffn_down": "IQ4_NL"}),
    "mixtral-q8_0": (Shape(family="mixtral", seed=10), "Q8_0", {}),
    "qwen2-moe-f16": (Shape(family="qwen2_moe", seed=11), "F16", {}),
    "qwen3-moe-q4_k_m": (replace(WIDE, family="qwen3_moe", expert_size=256, seed=12), "Q4_K", K_M | {"_inp": "F32"}),
}


@pytest.mark.parametrize("kind", [*ggufs.BLOCKS, "Q4_0", "Q8_0", "F16", "BF16", "F32"])
def test_values_are_those_of_the_reference_to_the_last_bit(kind: str) -> None:
    raw = ggufs.random_blocks(ggufs.Kind[kind], 16, 512)
    if kind in ("F16", "BF16", "F32"):
        floats = np.random.default_rng(0).normal(size=(16, 512)).astype(np.float32)
        raw = gguf.quants.quantize(floats, ggufs.Kind[kind]).view(np.uint8)
    wanted = torch.from_numpy(gguf.quants.dequantize(raw, ggufs.Kind[kind]).astype(np.float32))
    found = gguf_dequant.decoded(kind, torch.from_numpy(raw.reshape(-1).copy())).float().view(16, 512)
    assert torch.equal(found, wanted.view(16, 512))


@pytest.mark.parametrize("kind", KEPT)
def test_what_stays_in_its_format_is_worth_the_same(kind: str) -> None:
    raw = torch.from_numpy(ggufs.random_blocks(ggufs.Kind[kind], 16, 512).reshape(-1).copy())
    kept = gguf_dequant.kept(kind, raw, 16)
    assert kept.format == KEPT[kind]
    assert torch.equal(dequantized(kept), gguf_dequant.decoded(kind, raw).view(16, 512))


def test_pairs_are_put_back_into_halves() -> None:
    rows = torch.arange(2 * 6 * 3).view(12, 3).float()
    there = torch.from_numpy(ggufs.interleaved(rows.numpy(), 2))
    assert not torch.equal(there, rows)
    assert torch.equal(gguf_checkpoint.halves(there, 6), rows)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_reference_weights(tmp_path: Path, name: str) -> None:
    path, judge = both(tmp_path, *MODELS[name])
    runner, tokens = runner_of(path), tuple((7 * i) % 300 + 3 for i in range(45))
    sampling = SamplingConfig(max_tokens=1, temperature=0.0)
    join = Join(
        row=0,
        request_id="a",
        tokens=tokens,
        prompt_tokens=45,
        computed_tokens=0,
        tables=(tuple(range(6)),),
        sampling=sampling,
    )
    runner.collect(runner.launch(StepPlan(step=1, joins=(join,))))
    with torch.inference_mode():
        part = Chunk(row=0, start=0, num_tokens=45, samples=False)
        batch = replace(runner._rows.model_input([part]).batch, logit_rows=None)
        logits = runner._model.logits_of(runner._model.forward(batch, runner._cache))
    torch.testing.assert_close(logits, judge.logits(tokens), atol=2e-4, rtol=0)


def test_rotary_factors_in_the_file_stretch_as_llama_3_does(tmp_path: Path) -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    shape = Shape(extra={"rope_scaling": llama3 | {"original_max_position_embeddings": 64}})
    source = checkpoints.write(tmp_path / "model", shape)
    factors = llama3_factors(16, 10_000.0)
    path = ggufs.write(source, tmp_path / "model.gguf", extra_tensors={"rope_freqs.weight": factors})
    stream = Stream(prompt=tuple(range(3, 90)))
    Hand(runner_of(path)).run([stream], 12)
    assert Oracle(source).wrong_tokens(stream.prompt, stream.answer) == []
    plain = Hand(runner_of(ggufs.write(source, tmp_path / "plain.gguf")))
    other = Stream(prompt=stream.prompt)
    plain.run([other], 12)
    assert other.answer != stream.answer


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}, "unexpected tensor blk.0.attn_sinks.weight"),
        ({"blk.0.ffn_up_exps.weight": np.zeros((2, 4, 4), np.float32)}, "expected the matrices of 0 experts"),
        ({"blk.7.attn_q.bias": np.zeros(64, np.float32)}, "unexpected tensor model.layers.7.self_attn.q_proj.bias"),
    ],
)
def test_tensor_without_a_place_is_refused(tmp_path: Path, extra: dict[str, Any], reason: str) -> None:
    source = checkpoints.write(tmp_path / "model", Shape())
    path = ggufs.write(source, tmp_path / "model.gguf", extra_tensors=extra)
    with pytest.raises(ModelError, match=reason):
        runner_of(path)


def both(tmp_path: Path, shape: Shape, kind: str, kinds: dict[str, str]) -> tuple[Path, Oracle]:
    """A GGUF file, and transformers with the weights that the reference implementation reads from it."""
    source = checkpoints.write(tmp_path / "model", shape)
    path = ggufs.write(source, tmp_path / "model.gguf", kind=kind, kinds=kinds)
    judged = tmp_path / "judged"
    judged.mkdir()
    checkpoints.write_weights(judged, ggufs.reference(path))
    config = json.loads((source / "config.json").read_text()) | {"torch_dtype": "float32"}
    (judged / "config.json").write_text(json.dumps(config))
    return path, Oracle(judged)


def llama3_factors(head_dim: int, theta: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What converters store for factor 8, low 1, high 4, 64 positions: by what each frequency is divided."""
    factors = []
    for i in range(0, head_dim, 2):
        wave = 2 * np.pi * theta ** (i / head_dim)
        if wave < 64 / 4:
            factors.append(1.0)
        elif wave > 64 / 1:
            factors.append(8.0)
        else:
            share = (64 / wave - 1) / (4 - 1)
            factors.append(1 / ((1 - share) / 8 + share))
    return np.array(factors, np.float32)


@pytest.mark.parametrize(
    "name", ["phi3", "phi4-mini", "granite", "glm4", "olmo2", "command-r", "command-r-plus", "starcoder2"]
)
def test_answers_of_other_families_are_those_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    judge = family_checkpoints.write(tmp_path / "model", name)
    stream = Stream(prompt=tuple(range(3, 60)))
    Hand(runner_of(gguf_families.write(tmp_path / "model", tmp_path / "m.gguf"))).run([stream], 6)
    with torch.inference_mode():
        logits = judge(torch.tensor([[*stream.prompt, *stream.answer]]), use_cache=False).logits[0, 56:-1]
    assert (logits.gather(1, torch.tensor(stream.answer)[:, None])[:, 0] >= logits.amax(dim=1) - 1e-4).all()


@pytest.mark.parametrize(
    "shape",
    [
        Shape(family="gemma2", tied=True, head_dim=24, extra={"query_pre_attn_scalar": 24}),
        Shape(family="gemma3_text", tied=True, head_dim=24, num_layers=6, extra={"sliding_window_pattern": 6}),
    ],
    ids=lambda shape: shape.family,
)
def test_norms_of_gemma_lose_their_one_again(tmp_path: Path, shape: Shape) -> None:
    folder = checkpoints.write(tmp_path / "model", shape)
    stream = Stream(prompt=tuple(range(3, 60)))
    Hand(runner_of(gguf_families.write(folder, tmp_path / "m.gguf"))).run([stream], 6)
    assert Oracle(folder).wrong_tokens(stream.prompt, stream.answer) == []


def test_factors_of_phi_that_are_tensors_stretch_as_longrope(tmp_path: Path) -> None:
    family_checkpoints.write(tmp_path / "model", "phi4-mini")
    path = gguf_families.write(tmp_path / "model", tmp_path / "m.gguf", long=(2.0, 3.0, 4.0, 5.0), short=(1.0,) * 4)
    assert read_config(path).rope_scaling == RopeConfig(
        rope_type="longrope",
        long_factor=(2.0, 3.0, 4.0, 5.0),
        short_factor=(1.0,) * 4,
        original_max_position_embeddings=512,
    )
    path = gguf_families.write(tmp_path / "model", tmp_path / "m.gguf", long=(2.0, 3.0, 4.0, 5.0))
    with pytest.raises(ModelError, match="one is missing"):
        read_config(path)
