"""Checkpoints of integers are worth what their tools' formulas say, in float64, kept or decoded."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import checkpoints, integer_checkpoints, loaded_weights
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape, merged
from fakes.integer_checkpoints import Style
from fakes.oracle import Oracle
from kvasir_api.options import Quantization, ServeOptions
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import QuantizedWeight
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.layers.spec import parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.loader import load

SIZES = {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32, "num_layers": 1}
SHAPE = Shape(**SIZES, intermediate_size=384)
STYLES = {
    "gptq": Style(method="gptq", group=128),
    "gptq-asymmetric": Style(method="gptq", symmetric=False, biases=True),
    "gptq-act-order": Style(method="gptq", group=64, symmetric=False, act_order=True),
    "gptq-one-group": Style(method="gptq", group=0),
    "gptq-8": Style(method="gptq", bits=8, group=128),
    "gptq-v2": Style(method="gptq_v2", group=128, symmetric=False),
    "gptq-v2-act-order-8": Style(method="gptq_v2", bits=8, group=128, act_order=True),
    "awq": Style(method="awq", group=128, symmetric=False),
    "awq-64": Style(method="awq", group=64, symmetric=False),
    "packed": Style(method="packed", group=128, scales=torch.bfloat16),
    "packed-asymmetric": Style(method="packed", group=32, symmetric=False, scales=torch.bfloat16),
    "packed-act-order": Style(method="packed", group=128, act_order=True),
    "packed-channel": Style(method="packed", group=0, scales=torch.bfloat16),
    "packed-8": Style(method="packed", bits=8, group=128),
    "int8": Style(method="int8", bits=8, group=0, scales=torch.bfloat16),
    "int8-float32": Style(method="int8", bits=8, group=0, scales=torch.float32),
}
# What no format of ours holds.
ODD = {
    "gptq-8-asymmetric": Style(method="gptq", bits=8, group=128, symmetric=False),
    "gptq-own-orders": Style(method="gptq", group=64, act_order=True, own_order=True),
    "gptq-16": Style(method="gptq", group=16),
    "int8-asymmetric": Style(method="int8", bits=8, group=0, symmetric=False),
}
NAMES = pytest.mark.parametrize("name", STYLES)


loaded = functools.partial(loaded_weights.loaded, dtype=torch.float64)


def plain(weight: Weight) -> Tensor:
    return quantized.dequantized(weight, torch.float64) if isinstance(weight, QuantizedWeight) else weight


@pytest.mark.parametrize("name", STYLES | ODD)
def test_decoded_they_are_scales_times_numbers_less_zeros(tmp_path: Path, name: str) -> None:
    style = (STYLES | ODD)[name]
    worth = integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style, num_shards=3)
    tensors = loaded(tmp_path, "none")
    for ours, want in merged(worth).items():
        assert_same(plain(tensors[ours]), want, style)


@NAMES
def test_kept_they_are_the_same(tmp_path: Path, name: str) -> None:
    style = STYLES[name]
    worth = integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "auto")
    for ours, want in merged(worth).items():
        found = tensors[ours]
        assert isinstance(found, QuantizedWeight)
        assert (found.format.bits, found.format.ordered) == (style.bits, style.act_order)
        assert_same(plain(found), want, style)
    assert isinstance(tensors["head.weight"], Tensor)


def assert_same(found: Tensor, want: Tensor, style: Style) -> None:
    """Scales of 16 bits times numbers are exact in float32, in which they are computed."""
    apart = 2**-22 if style.scales == torch.float32 else 0.0
    torch.testing.assert_close(found.double(), want, rtol=apart, atol=0.0)


@pytest.mark.parametrize("name", ODD)
def test_what_no_format_holds_is_rounded_to_eight_bits(tmp_path: Path, name: str) -> None:
    worth = merged(integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), ODD[name]))
    found = loaded(tmp_path, "auto")["layers.0.qkv.weight"]
    assert isinstance(found, QuantizedWeight)
    assert found.format == quant_formats.ROUNDED
    torch.testing.assert_close(plain(found), worth["layers.0.qkv.weight"], rtol=0.0, atol=2e-3)


@pytest.mark.parametrize("quantization", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("name", ["gptq-act-order", "awq", "int8"])
def test_requested_in_other_bits_they_are_quantized_again(
    tmp_path: Path, name: str, quantization: Quantization
) -> None:
    worth = merged(integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), STYLES[name]))
    for ours, want in worth.items():
        found = loaded(tmp_path, quantization, dtype=torch.float32)[ours]
        assert isinstance(found, QuantizedWeight)
        assert found.format.name == quantization
        torch.testing.assert_close(plain(found), want, rtol=0.07, atol=0.03)


@pytest.mark.parametrize(
    ("name", "family"), [("gptq-act-order", "llama"), ("packed-asymmetric", "llama"), ("awq", "qwen3_moe")]
)
def test_answers_are_those_of_the_decoded_weights(tmp_path: Path, name: str, family: str) -> None:
    shape = replace(SHAPE, family=family, num_layers=2, num_experts=3, expert_size=128)
    folder, judged = checkpoints.write(tmp_path / "model", shape), checkpoints.write(tmp_path / "judged", shape)
    worth = integer_checkpoints.convert(folder, STYLES[name])
    checkpoints.write_weights(judged, {key: tensor.float() for key, tensor in worth.items()})
    # The C++ kernels round activations to 8 bits beside such weights: the reference's operations do not.
    stream = Stream(prompt=tuple(range(3, 40)))
    Hand(runner_of(folder, ops=REFERENCE, quantization="auto")).run([stream], 12)
    assert Oracle(judged).wrong_tokens(stream.prompt, stream.answer) == []


@pytest.mark.parametrize(("name", "held"), [("gptq", "int4"), ("awq", "int4"), ("gptq-8", "int8"), ("int8", "int8")])
def test_facts_name_the_bits_and_count_them(tmp_path: Path, name: str, held: str) -> None:
    integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), STYLES[name])
    options = ServeOptions(model=str(tmp_path), kv_cache_tokens=64, dtype="bfloat16", device="cpu")
    facts = build(options, lambda _: None).facts
    assert facts.quantization == held
    matrices = sum(rows * columns for rows, columns in ((512, 256), (256, 256), (768, 256), (256, 384)))
    others = 2 * (2 * 320 * 256 + 3 * 256)
    each = STYLES[name].bits // 8 if STYLES[name].bits == 8 else 0.5
    assert others + matrices * each < facts.weights_bytes < others + matrices * (each + 0.13)


def test_experts_with_an_order_of_columns_are_rounded(tmp_path: Path) -> None:
    shape = Shape(**SIZES, family="qwen3_moe", num_experts=3, expert_size=128)
    integer_checkpoints.convert(checkpoints.write(tmp_path, shape), STYLES["gptq-act-order"])
    found = loaded(tmp_path, "auto")
    formats = {name: one.format for name, one in found.items() if isinstance(one, QuantizedWeight)}
    assert formats["layers.0.experts.down.weight"] == quant_formats.ROUNDED
    assert formats["layers.0.output.weight"].ordered


def test_an_order_of_columns_cannot_be_divided_among_ranks(tmp_path: Path) -> None:
    integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), STYLES["gptq-act-order"])
    config = read_config(tmp_path)
    spec = family_of(config).spec(config)
    places = family_of(config).places(spec)
    output = "model.layers.0.self_attn.o_proj.weight"
    places[output] = replace(places[output], columns=(128, 128))
    with pytest.raises(ModelError, match=r"o_proj\.weight have an order of their own \(act-order\), which cannot be"):
        load(tmp_path, places, parameter_shapes(spec), torch.float32, torch.device("cpu"), lambda read, total: None)


@pytest.mark.parametrize(
    ("name", "part", "tensor", "message"),
    [
        ("gptq", "scales", None, r"o_proj.qweight has no .*o_proj.scales beside it"),
        ("gptq", "qzeros", torch.zeros(2, 5, dtype=torch.int32), "o_proj.qzeros has 5 columns for 256 rows"),
        ("gptq", "scales", torch.zeros(3, 256), r"qzeros has shape \[2, 32\], expected \[3, 32\]"),
        ("gptq", "g_idx", torch.full((256,), 9, dtype=torch.int32), "names a group of 2 that is not there"),
        ("awq", "qweight", torch.zeros(256, 31, dtype=torch.int32), r"shape \[256, 31\], expected \[256, 32\]"),
        ("packed", "weight_scale", None, "no .*o_proj.weight_scale beside it"),
        ("packed", "weight_shape", torch.tensor([256, 999]), "which fits no matrix"),
        ("packed", "weight_scale", torch.zeros(255, 2), r"has shape \[255, 2\], expected \[256, 2\]"),
        ("gptq", "scales", torch.zeros(2, 0), r"o_proj.scales has shape \[2, 0\], which fits no matrix"),
        ("gptq", "scales", torch.zeros(0, 256), r"o_proj.scales has shape \[0, 256\], which fits no matrix"),
        ("gptq", "scales", torch.zeros(256), r"o_proj.scales has shape \[256\], which fits no matrix"),
        ("awq", "scales", torch.zeros(2, 0), r"o_proj.scales has shape \[2, 0\], which fits no matrix"),
        ("gptq", "qzeros", torch.zeros(0, 32, dtype=torch.int32), r"qzeros has shape \[0, 32\], which fits no matrix"),
        ("gptq", "qweight", torch.zeros(0, 256, dtype=torch.int32), r"qweight has shape \[0, 256\], which fits no"),
        ("gptq", "qweight", torch.zeros(32, 256), "o_proj.qweight has type float32, expected int32"),
        ("gptq", "qzeros", torch.zeros(2, 32, dtype=torch.int64), "o_proj.qzeros has type int64, expected int32"),
        (
            "awq",
            "qweight",
            torch.zeros(256, 32, dtype=torch.float16),
            "o_proj.qweight has type float16, expected int32",
        ),
        ("gptq", "bias", torch.zeros(0), "o_proj.bias is empty"),
        ("packed", "weight_packed", torch.zeros(256, 32), "o_proj.weight_packed has type float32, expected int32"),
        ("packed", "weight_packed", torch.zeros(256, 0, dtype=torch.int32), r"shape \[256, 0\], which fits no matrix"),
        ("packed", "weight_scale", torch.zeros(4, 0), r"weight_scale has shape \[4, 0\], expected"),
        ("packed", "weight_scale", torch.zeros(0), r"weight_scale has shape \[0\], expected"),
        ("packed", "weight_shape", torch.zeros(0, dtype=torch.int64), r"weight_shape has shape \[0\], expected \[2\]"),
        ("packed", "weight_shape", torch.tensor(256), r"weight_shape has shape \[\], expected \[2\]"),
        (
            "packed",
            "weight_shape",
            torch.tensor([256.0, 256.0]),
            "weight_shape has type float32, expected int32 or int64",
        ),
        ("packed", "weight_zero_point", torch.zeros(32, 2), "weight_zero_point has type float32, expected int32"),
        ("int8", "weight_scale", torch.zeros(4, 0), r"weight_scale has shape \[4, 0\], expected"),
        (
            "int8",
            "weight",
            torch.zeros(256, dtype=torch.int8),
            r"o_proj.weight has shape \[256\], which fits no matrix",
        ),
        ("int8", "weight_scale", None, "o_proj.weight has type int8 without scales"),
        ("int8", "odd", torch.zeros(2, dtype=torch.int32), "o_proj.odd has type int32 without scales"),
    ],
)
def test_what_is_missing_or_of_another_shape_is_named(
    tmp_path: Path, name: str, part: str, tensor: Tensor | None, message: str
) -> None:
    integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), STYLES[name])
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop(f"model.layers.0.self_attn.o_proj.{part}", None)
    if tensor is not None:
        weights[f"model.layers.0.self_attn.o_proj.{part}"] = tensor
    checkpoints.write_weights(tmp_path, weights)
    with pytest.raises(ModelError, match=message) as caught:
        loaded(tmp_path, "none")
    assert str(tmp_path / "model.safetensors") in str(caught.value)


def test_zeros_that_are_not_where_the_config_says_are_refused(tmp_path: Path) -> None:
    integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), ODD["gptq-8-asymmetric"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["sym"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="zeros are not in the middle, but quantization_config says sym"):
        loaded(tmp_path, "auto")


def test_a_bias_that_is_none_of_zeros_needs_a_place(tmp_path: Path) -> None:
    integer_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), STYLES["gptq-asymmetric"])
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.bias"] += 1
    checkpoints.write_weights(tmp_path, weights)
    with pytest.raises(ModelError, match=r"unexpected tensor model\.layers\.0\.mlp\.down_proj\.bias"):
        loaded(tmp_path, "none")
