"""Checkpoints of HQQ are worth what their scales and zeros say, in float64, kept or decoded."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import checkpoints, hqq_checkpoints, loaded_weights
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape, merged
from fakes.hqq_checkpoints import Style, letters
from fakes.oracle import Oracle
from kvasir_api import stored_bits
from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.models.family import Place
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.weights import hqq, quant_formats, safetensors_checkpoint

SHAPE = Shape(hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, num_layers=1, intermediate_size=384)
KEPT = {
    "4": Style(),
    "4-by-128": Style(group=128, dtype=torch.bfloat16),
    "4-as-float": Style(view_as_float=True, dtype=torch.bfloat16),
    "4-float32": Style(group=32, dtype=torch.float32),
    "3": Style(bits=3),
    "3-as-float": Style(bits=3, view_as_float=True),
    "2": Style(bits=2, group=32),
    "1.58": Style(bits=1.58),
    "1": Style(bits=1, group=32),
}
# What no format of ours holds: asymmetric 8 bits, small groups, groups across rows.
ODD = {
    "8": Style(bits=8),
    "5": Style(bits=5),
    "4-by-16": Style(group=16),
    "4-by-512": Style(group=512),
    "4-axis-0": Style(axis=0),
    "3-axis-0": Style(bits=3, axis=0),
    "8-axis-0": Style(bits=8, axis=0, group=128),
}
OUTPUT = "model.layers.0.self_attn.o_proj."


loaded = functools.partial(loaded_weights.loaded, dtype=torch.float64)


def part_of_output(columns: tuple[int, int] | None, rows: tuple[int, int] | None) -> loaded_weights.Change:
    """columns, rows: first and count of those that are taken of the output's matrix."""

    def change(places: dict[str, Place], shapes: dict[str, tuple[int, ...]]) -> None:
        place = places[f"{OUTPUT}weight"]
        places[f"{OUTPUT}weight"] = replace(place, columns=columns, rows=(rows,) if rows else None)
        shapes["layers.0.output.weight"] = (rows[1] if rows else 256, columns[1] if columns else 256)

    return change


def plain(weight: Weight) -> Tensor:
    """In float64: rounding is that of the file's numbers alone."""
    if not isinstance(weight, QuantizedWeight):
        return weight
    assert weight.minima is not None
    rows, columns = weight.shape
    q = quantized.numbers(weight).double().view(rows, weight.scales.shape[1], -1)
    return (q * weight.scales.double()[..., None] - weight.minima.double()[..., None]).view(rows, columns)


@pytest.mark.parametrize("name", KEPT | ODD)
def test_decoded_they_are_scales_times_numbers_less_zeros(tmp_path: Path, name: str) -> None:
    worth = hqq_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), (KEPT | ODD)[name], num_shards=3)
    tensors = loaded(tmp_path, "none")
    for ours, want in merged(worth).items():
        torch.testing.assert_close(tensors[ours], want, rtol=2**-22, atol=2**-24)


@pytest.mark.parametrize("name", KEPT)
def test_kept_they_are_the_same(tmp_path: Path, name: str) -> None:
    """Scales of 16 bits times such zeros are exact in float32."""
    style = KEPT[name]
    worth = hqq_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "auto")
    for ours, want in merged(worth).items():
        found = tensors[ours]
        assert isinstance(found, QuantizedWeight)
        group = max(group for group in (128, 64, 32) if style.group % group == 0 and want.shape[1] % group == 0)
        assert found.format == QuantFormat(bits=4, group=group, wide=True)
        apart = 2**-24 if style.dtype == torch.float32 else 2**-50
        torch.testing.assert_close(plain(found), want, rtol=0.0, atol=apart)
    assert isinstance(tensors["head.weight"], Tensor)


@pytest.mark.parametrize("name", ODD)
def test_what_no_format_holds_is_rounded_to_eight_bits(tmp_path: Path, name: str) -> None:
    worth = merged(hqq_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), ODD[name]))
    found = loaded(tmp_path, "auto")["layers.0.qkv.weight"]
    assert isinstance(found, QuantizedWeight)
    assert found.format == quant_formats.ROUNDED
    torch.testing.assert_close(
        quantized.dequantized(found, torch.float64), worth["layers.0.qkv.weight"], rtol=0.0, atol=2e-3
    )


@pytest.mark.parametrize("name", ["4", "3", "4-axis-0"])
@pytest.mark.parametrize(("columns", "rows"), [((64, 128), None), (None, (32, 64)), ((128, 128), (192, 64))])
def test_a_rank_takes_its_part(
    tmp_path: Path, name: str, columns: tuple[int, int] | None, rows: tuple[int, int] | None
) -> None:
    worth = hqq_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), (KEPT | ODD)[name])
    change = part_of_output(columns, rows)
    found = loaded(tmp_path, "none" if name in ODD else "auto", change=change)["layers.0.output.weight"]
    (left, width), (top, height) = columns or (0, 256), rows or (0, 256)
    want = worth[f"{OUTPUT}weight"][top : top + height, left : left + width]
    torch.testing.assert_close(plain(found), want, rtol=2**-22, atol=2**-24)


def test_answers_are_those_of_the_decoded_weights(tmp_path: Path) -> None:
    shape = replace(SHAPE, family="qwen2", num_layers=2)
    folder, judged = checkpoints.write(tmp_path / "model", shape), checkpoints.write(tmp_path / "judged", shape)
    worth = hqq_checkpoints.convert(folder, KEPT["4"])
    checkpoints.write_weights(judged, {key: tensor.float() for key, tensor in worth.items()})
    # The C++ kernels round activations to 8 bits beside such weights: the reference's operations do not.
    stream = Stream(prompt=tuple(range(3, 40)))
    Hand(runner_of(folder, ops=REFERENCE, quantization="auto")).run([stream], 12)
    assert Oracle(judged).wrong_tokens(stream.prompt, stream.answer) == []


@pytest.mark.parametrize(
    ("name", "group", "held"),
    [("4", 64, "int4"), ("4", 32, "int4"), ("2", 64, "int4"), ("8", 64, "int8"), ("4-axis-0", 64, "int8")],
)
def test_facts_name_the_bits_and_the_forecast_counts_them(tmp_path: Path, name: str, group: int, held: str) -> None:
    style = replace((KEPT | ODD)[name], group=group)
    hqq_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    options = ServeOptions(model=str(tmp_path), kv_cache_tokens=64, dtype="bfloat16", device="cpu")
    facts = build(options, lambda _: None).facts
    assert facts.quantization == held
    matrices = sum(rows * columns for rows, columns in ((512, 256), (256, 256), (768, 256), (256, 384)))
    others = 2 * (2 * 320 * 256 + 3 * 256)
    described, columns = hqq_checkpoints.described(style), (256, 384)
    assert facts.weights_bytes == others + matrices * stored_bits.sixteenths(described, 0.0, columns, "cpu") // 16


class CountedPath(type(Path())):  # type: ignore[misc]
    """A path that counts how often it is opened."""

    opened = 0

    def open(self, *arguments: Any, **named: Any) -> Any:
        type(self).opened += 1
        return super().open(*arguments, **named)


def test_a_file_is_opened_once_for_what_describes_its_matrices(tmp_path: Path) -> None:
    hqq_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), KEPT["4"])
    stored = list(safetensors_checkpoint.stored(tmp_path / "model.safetensors"))
    CountedPath.opened = 0
    assert len(hqq.joined(replace(one, path=CountedPath(one.path)) for one in stored)) < len(stored)
    assert CountedPath.opened == 1


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        ("scale", None, r"o_proj\.W_q has no .*o_proj\.scale beside it"),
        ("zero", None, r"o_proj\.W_q has no .*o_proj\.zero beside it"),
        ("packing", None, r"o_proj\.W_q has no .*o_proj\.packing beside it"),
        ("scale", torch.zeros(1024, 2), r"o_proj\.scale has shape \[1024, 2\], expected \[1024, 1\]"),
        ("zero", torch.zeros(1, 1024), r"o_proj\.zero has shape \[1, 1024\], expected \[1024, 1\]"),
        ("zero", torch.zeros(1024, 1, dtype=torch.uint8), r"o_proj\.zero has type uint8, expected float16 or"),
        ("shape", torch.tensor([255, 255]), r"o_proj\.group_size is 64, which does not divide \[255, 255\]"),
        ("shape", torch.tensor([-256, -256]), r"o_proj\.group_size is 64, which does not divide \[-256, -256\]"),
        ("shape", torch.tensor([256, 512]), r"o_proj\.scale has shape \[1024, 1\], expected \[2048, 1\]"),
        ("shape", torch.tensor([512, 128]), r"o_proj\.weight has shape \[512, 128\], expected \[256, 256\]"),
        ("shape", torch.tensor(256), r"o_proj\.shape has shape \[\], expected \[2\]"),
        ("shape", torch.tensor([256.0, 256.0]), r"o_proj\.shape has type float32, expected int32 or int64"),
        ("group_size", torch.tensor(0, dtype=torch.int32), r"o_proj\.group_size is 0, which does not divide"),
        ("group_size", torch.tensor([64]), r"o_proj\.group_size has shape \[1\], expected \[\]"),
        ("axis", torch.tensor(2), r"o_proj\.axis is 2, expected 0 or 1"),
        ("axis", torch.tensor(0), r"o_proj\.scale has shape \[1024, 1\], expected \[1, 1024\]"),
        ("packing", letters("4bit_32"), r"o_proj\.packing is '4bit_32', expected one of 8bit_u8, 4bit_u8, 3bit_32"),
        (
            "packing",
            letters("8bit_u8"),
            r"o_proj\.W_q has shape \[512, 64\] and 32768 bytes, expected 1024 lines of 64 bytes",
        ),
        ("packing", letters("3bit_32"), r"o_proj\.W_q has type uint8, expected int32"),
        ("packing", letters("4bit"), r"o_proj\.packing has shape \[4\], expected \[7\]"),
        ("packing", torch.zeros(7), r"o_proj\.packing has type float32, expected uint8"),
        (
            "W_q",
            torch.zeros(512, 63, dtype=torch.uint8),
            r"o_proj\.W_q has .*32256 bytes, expected 512 lines of 64 bytes",
        ),
        (
            "W_q",
            torch.zeros(64, 512, dtype=torch.uint8),
            r"o_proj\.W_q has shape \[64, 512\] and 32768 bytes, expected 512",
        ),
        ("W_q", torch.zeros(32768, dtype=torch.uint8), r"o_proj\.W_q has shape \[32768\] and .* expected 512 lines"),
        ("zero_scale", torch.zeros(2, 1024, 1), r"o_proj\.zero_scale beside .*W_q is not read: .*offload_meta"),
        ("scale_q", torch.zeros(4), r"o_proj\.scale_q beside .*W_q is not read: .*quant_scale"),
        ("weight", torch.zeros(256, 256), r"o_proj\.weight beside .*W_q is not read: which of both"),
        ("W_q", torch.zeros(512, 64, dtype=torch.int8), r"o_proj\.W_q has type int8, expected uint8 or float16"),
        ("bias", torch.zeros(256), r"unexpected tensor .*o_proj\.bias"),
    ],
)
def test_what_is_missing_or_of_another_shape_is_named(
    tmp_path: Path, part: str, tensor: Tensor | None, message: str
) -> None:
    hqq_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), KEPT["4"])
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop(OUTPUT + part, None)
    if tensor is not None:
        weights[OUTPUT + part] = tensor
    checkpoints.write_weights(tmp_path, weights)
    with pytest.raises(ModelError, match=message) as caught:
        loaded(tmp_path, "none")
    assert str(tmp_path / "model.safetensors") in str(caught.value)
