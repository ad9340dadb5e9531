"""Checkpoints of bitsandbytes are worth what their tables and scales say."""

import functools
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import bitsandbytes_checkpoints, checkpoints, loaded_weights
from fakes.checkpoints import Shape
from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight
from kvasir_runtime.weights import bitsandbytes, quant_formats, safetensors_checkpoint

SHAPE = Shape(hidden_size=128, num_layers=1, head_dim=32, intermediate_size=192)
OUTPUT = "model.layers.0.self_attn.o_proj.weight"
STYLES = ("nf4", "nf4-nested", "int8")
NF4_STATE = ".quant_state.bitsandbytes__nf4"
STATE = {"shape": [128, 128], "blocksize": 64, "nested_blocksize": 256, "nested_offset": 0.5}


def state(**changes: object) -> Tensor:
    """The JSON beside a matrix, changed."""
    return torch.frombuffer(bytearray(msgspec.json.encode(STATE | changes)), dtype=torch.uint8)


loaded = functools.partial(loaded_weights.loaded, dtype=torch.float64)


@pytest.mark.parametrize("style", STYLES)
def test_decoded_they_are_what_the_tables_say(tmp_path: Path, style: str) -> None:
    worth = bitsandbytes_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "none")
    found = tensors["layers.0.gate_up.weight"]
    wanted = torch.cat([worth[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up")])
    torch.testing.assert_close(found, wanted, rtol=2**-20, atol=1e-9)
    torch.testing.assert_close(tensors["layers.0.output.weight"], worth[OUTPUT], rtol=2**-20, atol=1e-9)


@pytest.mark.parametrize(
    ("style", "held"),
    [
        ("nf4", QuantFormat(bits=4, group=64, wide=True, codebook="nf4")),
        ("nf4-nested", QuantFormat(bits=4, group=64, wide=True, codebook="nf4")),
        ("fp4", QuantFormat(bits=4, group=64, wide=True, codebook="bnb-fp4")),
        ("int8", QuantFormat(bits=8, group=128, wide=True)),
    ],
)
def test_numbers_of_eight_bits_are_kept_and_places_are_those_of_the_nearest_integers(
    tmp_path: Path, style: str, held: QuantFormat
) -> None:
    worth = bitsandbytes_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    found = loaded(tmp_path, "auto", device=quant_formats.PROCESSORS)["layers.0.output.weight"]
    assert isinstance(found, QuantizedWeight)
    assert found.format == held
    off = (quantized.dequantized(found, torch.float64) - worth[OUTPUT]).view(-1, 64).abs().amax(1)
    largest = worth[OUTPUT].view(-1, 64).abs().amax(1)
    assert bool((off <= (2**-20 if style == "int8" else 0.004) * largest).all())


def test_on_cards_and_of_blocks_that_rows_cut_they_are_rounded_to_eight_bits(tmp_path: Path) -> None:
    bitsandbytes_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "nf4")
    found = loaded(tmp_path, "auto", device=quant_formats.CARDS)["layers.0.output.weight"]
    assert isinstance(found, QuantizedWeight)
    assert found.format == quant_formats.ROUNDED
    weights = load_file(tmp_path / "model.safetensors")
    blocks = torch.ones(weights[OUTPUT + ".absmax"].shape[0] * 64 // 96 + 1)
    weights[OUTPUT + NF4_STATE] = state(blocksize=96)
    checkpoints.write_weights(tmp_path, weights | {OUTPUT + ".absmax": blocks})
    found = loaded(tmp_path, "auto", device=quant_formats.PROCESSORS)["layers.0.output.weight"]
    assert isinstance(found, QuantizedWeight)
    assert found.format == quant_formats.ROUNDED


def test_a_file_is_opened_once_for_what_describes_its_matrices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bitsandbytes_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "nf4-nested")
    opened, real = list[Path](), arriving.opened

    def counted(path: Path, end: int) -> BinaryIO:
        opened.append(path)
        return real(path, end)

    found = safetensors_checkpoint.stored(tmp_path / "model.safetensors")
    monkeypatch.setattr(arriving, "opened", counted)
    assert len([one for one in bitsandbytes.joined(found) if one.kind is not None]) > 4
    assert opened == [tmp_path / "model.safetensors"]


def test_a_list_of_other_values_is_decoded(tmp_path: Path) -> None:
    bitsandbytes_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "nf4")
    weights = load_file(tmp_path / "model.safetensors")
    weights[OUTPUT + ".quant_map"] *= 0.5
    checkpoints.write_weights(tmp_path, weights)
    found, full = (loaded(tmp_path, bits, device=quant_formats.PROCESSORS) for bits in ("auto", "none"))
    held = found["layers.0.output.weight"]
    assert isinstance(held, QuantizedWeight)
    assert held.format == quant_formats.ROUNDED
    torch.testing.assert_close(quantized.dequantized(held), full["layers.0.output.weight"].float(), rtol=0.0, atol=2e-3)


@pytest.mark.parametrize(
    ("style", "part", "tensor", "message"),
    [
        ("nf4", ".absmax", None, r"has no .*absmax beside it"),
        ("nf4", ".absmax", torch.zeros(7), r"absmax has shape \[7\], expected \[256\]"),
        ("nf4", ".absmax", torch.zeros(2, 128), r"absmax has shape \[2, 128\], expected \[256\]"),
        ("nf4", ".quant_map", torch.zeros(15), r"expected \[16\]"),
        (
            "nf4",
            "",
            torch.zeros(8192, 1, dtype=torch.bfloat16),
            r"weight has .* bfloat16, expected 8192 bytes of uint8",
        ),
        ("nf4", "", torch.zeros(8191, 1, dtype=torch.uint8), "expected 8192 bytes of uint8"),
        ("nf4", NF4_STATE, torch.tensor([123], dtype=torch.uint8), "quant_state.bitsandbytes__nf4: "),
        ("nf4", NF4_STATE, torch.zeros(0, dtype=torch.uint8), "bitsandbytes__nf4 is empty"),
        (
            "nf4",
            NF4_STATE,
            torch.zeros(9, dtype=torch.bfloat16),
            r"bitsandbytes__nf4 has type bfloat16, expected uint8",
        ),
        ("nf4", NF4_STATE, state(blocksize=0), r"bitsandbytes__nf4: .*\$\.blocksize"),
        ("nf4", NF4_STATE, state(blocksize=1 << 70), r"bitsandbytes__nf4: "),
        ("nf4", NF4_STATE, state(shape=[128, 0]), r"bitsandbytes__nf4: .*\$\.shape"),
        ("nf4-nested", NF4_STATE, state(nested_blocksize=0), r"bitsandbytes__nf4: .*\$\.nested_blocksize"),
        ("nf4-nested", NF4_STATE, state(nested_blocksize=1 << 34), r"bitsandbytes__nf4: .*\$\.nested_blocksize"),
        ("nf4-nested", NF4_STATE, state(nested_blocksize=128), r"nested_absmax has shape \[1\], expected \[2\]"),
        ("nf4-nested", ".absmax", torch.zeros(2, 128, dtype=torch.uint8), r"absmax .* expected \[256\]"),
        ("int8", "", torch.zeros(128, dtype=torch.int8), r"weight has shape \[128\], which fits no matrix"),
        ("int8", "", torch.zeros(128, 0, dtype=torch.int8), r"weight has shape \[128, 0\], which fits no matrix"),
    ],
)
def test_what_is_missing_or_of_another_shape_is_named(
    tmp_path: Path, style: str, part: str, tensor: Tensor | None, message: str
) -> None:
    bitsandbytes_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop(OUTPUT + part)
    if tensor is not None:
        weights[OUTPUT + part] = tensor
    checkpoints.write_weights(tmp_path, weights)
    with pytest.raises(ModelError, match=message):
        loaded(tmp_path, "none")


def test_a_block_of_scales_may_be_wider_than_the_scales(tmp_path: Path) -> None:
    """As it is beside small matrices, with the largest size that is read: no memory is taken by it."""
    worth = bitsandbytes_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "nf4-nested")
    weights = load_file(tmp_path / "model.safetensors")
    offset = msgspec.json.decode(weights[OUTPUT + NF4_STATE].numpy().tobytes())["nested_offset"]
    weights[OUTPUT + NF4_STATE] = state(nested_blocksize=(1 << 31) - 1, nested_offset=offset)
    checkpoints.write_weights(tmp_path, weights)
    found = loaded(tmp_path, "none")["layers.0.output.weight"]
    torch.testing.assert_close(found, worth[OUTPUT], rtol=2**-20, atol=1e-9)
