"""Quantized weights: the error is bounded, the right weights are chosen, and the engine computes with them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fakes import checkpoints, ggufs
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.loaded_weights import loaded
from fakes.oracle import Oracle
from kvasir_api.options import Quantization, ServeOptions
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.quantized import FP8, QuantFormat, QuantizedWeight
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.weights import gguf_checkpoint, quant_formats

quantize = cpu_ops().quantize
SHAPE = Shape(hidden_size=64, intermediate_size=96, num_layers=2)
LAYER = ("qkv.weight", "output.weight", "gate_up.weight", "down.weight")


def rows(kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(64, 256, generator=generator) * 0.02
    if kind == "far out":
        normal[:, ::50] *= 20
    return normal + 0.05 if kind == "shifted" else normal


@pytest.mark.parametrize("kind", ["normal", "far out", "shifted"])
def test_eight_bits_are_off_by_half_a_step_at_most(kind: str) -> None:
    weight = rows(kind)
    found = quantize(weight, QuantFormat(bits=8))
    error = (quantized.dequantized(found) - weight).abs().view(64, -1, 32)
    assert bool((error <= found.scales.float().unsqueeze(2) * 0.501 + 1e-4 * weight.abs().max()).all())
    assert int(found.values.abs().max()) == 127


@pytest.mark.parametrize("kind", ["normal", "far out", "shifted"])
def test_e4m3_is_off_by_a_sixteenth_of_each_number_at_most(kind: str) -> None:
    weight = rows(kind)
    found = quantize(weight, FP8)
    assert found.scales.shape == (64, 1)
    step = found.scales * 2**-9  # of the smallest numbers, which have no exponent of their own
    assert bool(
        ((quantized.dequantized(found) - weight).abs() <= torch.maximum(weight.abs() / 16, step / 2) * 1.001).all()
    )
    assert float(found.values.float().abs().max()) == 448


@pytest.mark.parametrize(("kind", "most"), [("normal", 0.075), ("far out", 0.105), ("shifted", 0.03)])
def test_four_bits_lose_less_than_the_plain_range(kind: str, most: float) -> None:
    weight = rows(kind)
    found = quantized.dequantized(quantize(weight, QuantFormat(bits=4)))
    grouped = weight.view(64, -1, 32)
    low, high = grouped.amin(2, keepdim=True), grouped.amax(2, keepdim=True)
    step = (high - low) / 15
    plain = (((grouped - low) / step).round() * step + low).view(64, 256)

    def error(other: torch.Tensor) -> float:
        return float((other - weight).norm() / weight.norm())

    assert error(found) < 0.98 * error(plain)
    assert error(found) < most


@pytest.mark.parametrize("bits", [8, 4])
def test_groups_of_one_value_are_exact(bits: int) -> None:
    weight = torch.tensor([0.0, 0.5, -0.25]).repeat_interleave(32).view(1, 96)
    assert torch.allclose(quantized.dequantized(quantize(weight, QuantFormat(bits=bits))), weight, atol=1e-3)


def test_rows_are_quantized_alone_so_that_pieces_may_be_of_any_size() -> None:
    weight = rows("normal")
    whole, part = quantize(weight, QuantFormat(bits=4)), quantize(weight[7:13], QuantFormat(bits=4))
    assert torch.equal(whole.rows(7, 6).values, part.values)


@pytest.mark.parametrize(
    ("quantization", "kind", "layer", "head"),
    [
        ("none", "", None, None),
        ("auto", "", None, None),
        ("fp8", "", "fp8", "int8"),
        ("int8", "", "int8", "int8"),
        ("int4", "", "int4", "int8"),
        ("auto", "Q8_0", "int8", "int8"),
        ("auto", "Q4_0", "int4", "int4"),
        ("auto", "Q6_K", "int8", "int8"),
        ("fp8", "Q8_0", "fp8", "int8"),
        ("auto", "BF16", None, None),
        ("none", "Q8_0", None, None),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_matrices_and_head_are_quantized(
    tmp_path: Path, quantization: Quantization, kind: str, layer: str | None, head: str | None, tied: bool
) -> None:
    folder = checkpoints.write(tmp_path, replace(SHAPE, tied=tied))
    config = read_config(folder)
    spec = family_of(config).spec(config)
    shapes, places = parameter_shapes(spec), family_of(config).places(spec)
    of = dict.fromkeys(places, gguf_checkpoint.kind_of(kind)) if kind else {}
    found = quant_formats.formats(quantization, spec, shapes, places, of)
    wanted = {f"layers.{index}.{name}": layer for index in range(2) for name in LAYER} | {"head.weight": head}
    assert {name: format_.name for name, format_ in found.items()} == {k: v for k, v in wanted.items() if v}


def test_merged_weight_of_two_types_is_held_in_eight_bits() -> None:
    folder_spec = family_of_shape(SHAPE)
    spec, shapes, places = folder_spec
    value = "model.layers.1.self_attn.v_proj.weight"
    of = dict.fromkeys(places, gguf_checkpoint.kind_of("Q4_K")) | {value: gguf_checkpoint.kind_of("Q6_K")}
    found = quant_formats.formats("auto", spec, shapes, places, of)
    assert found["layers.0.qkv.weight"] == QuantFormat(bits=4, wide=True)
    assert found["layers.1.qkv.weight"] == QuantFormat(bits=8)
    of[value] = gguf_checkpoint.kind_of("F16")
    assert "layers.1.qkv.weight" not in quant_formats.formats("auto", spec, shapes, places, of)


def test_columns_that_are_no_whole_groups_stay(tmp_path: Path) -> None:
    spec, shapes, places = family_of_shape(replace(SHAPE, intermediate_size=90))
    found = quant_formats.formats("int8", spec, shapes, places, {})
    assert "layers.0.down.weight" not in found
    assert "layers.0.gate_up.weight" in found


@pytest.mark.parametrize("quantization", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_answers_are_those_of_the_rounded_weights(tmp_path: Path, quantization: Quantization, family: str) -> None:
    shape = replace(SHAPE, family=family, tied=family == "qwen2")
    folder = checkpoints.write(tmp_path / "model", shape)
    judged = rounded(folder, tmp_path / "judged", quantization)
    stream = Stream(prompt=tuple(range(3, 60)))
    Hand(runner_of(folder, quantization=quantization)).run([stream], 16)
    assert judged.wrong_tokens(stream.prompt, stream.answer) == []


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K"])
@pytest.mark.parametrize(("family", "tied"), [("llama", False), ("llama", True), ("mixtral", False)])
def test_kept_weights_are_what_decoding_gives(tmp_path: Path, kind: str, family: str, tied: bool) -> None:
    sizes = {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 256, "expert_size": 256}
    shape = Shape(family=family, head_dim=32, tied=tied, **sizes)
    path = ggufs.write(checkpoints.write(tmp_path / "model", shape), tmp_path / "m.gguf", kind=kind)
    kept, plain = loaded(path, "auto"), loaded(path, "none")
    for name, weight in plain.items():
        found = kept[name]
        assert isinstance(weight, torch.Tensor)
        if name == "embedding" or not name.endswith(".weight"):
            assert isinstance(found, torch.Tensor)
            assert torch.equal(found, weight)
        else:
            assert isinstance(found, QuantizedWeight)
            assert torch.equal(quantized.dequantized(found), weight)
    if tied:
        head = kept["head.weight"]
        assert isinstance(head, QuantizedWeight)
        assert torch.equal(quantized.dequantized(head), plain["embedding"])


@pytest.mark.parametrize(
    ("quantization", "held", "name"),
    # 1,179,648 parameters in layers, 81,920 in the head and as many in the table, 1,280 in norms. Groups of 8 bits are
    # of 128 columns.
    [
        ("none", 2_689_536, ""),
        ("fp8", 1_445_632, "fp8, int8"),  # 4096 rows in layers have a scale each
        ("int8", 1_447_680, "int8"),
        ("int4", 986_880, "int4, int8"),
    ],
)
def test_facts_count_the_bytes_that_are_held(tmp_path: Path, quantization: Quantization, held: int, name: str) -> None:
    shape = Shape(
        hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, intermediate_size=512, dtype=torch.bfloat16
    )
    folder = checkpoints.write(tmp_path, shape)
    options = ServeOptions(
        model=str(folder), quantization=quantization, kv_cache_tokens=512, dtype="bfloat16", device="cpu"
    )
    facts = build(options, lambda _: None).facts
    assert facts.weights_bytes == held
    assert facts.quantization == name


def family_of_shape(shape: Shape):
    """Spec, shapes and places without a file."""
    import msgspec

    from kvasir_runtime.models.config import ModelConfig

    config = msgspec.convert(checkpoints.config_json(shape), ModelConfig)
    spec = family_of(config).spec(config)
    return spec, parameter_shapes(spec), family_of(config).places(spec)


def rounded(folder: Path, target: Path, quantization: Quantization) -> Oracle:
    """transformers with a checkpoint whose matrices went through our formats and back."""
    from safetensors.torch import load_file

    def held(name: str, columns: int) -> QuantFormat:
        layer = name != "lm_head.weight" and quantization != "int8"
        return quant_formats.LAYERS[quantization] if layer else quant_formats.PROCESSORS.eight_bits(columns)

    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    if config["tie_word_embeddings"]:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    for name, weight in weights.items():
        if name.endswith("proj.weight") or name == "lm_head.weight":
            weights[name] = quantized.dequantized(quantize(weight, held(name, weight.shape[1])))
    target.mkdir()
    checkpoints.write_weights(target, weights)
    (target / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    return Oracle(target)
