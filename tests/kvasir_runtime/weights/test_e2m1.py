"""Checkpoints in e2m1 are worth what their numbers times their scales are, kept or decoded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fakes import checkpoints, e2m1_checkpoints
from fakes.checkpoints import Shape, merged
from fakes.loaded_weights import loaded
from kvasir_api import forecast
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.cpu import linear
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import QuantizedWeight, numbers
from kvasir_runtime.models.config import read_document
from kvasir_runtime.weights import e2m1, safetensors_checkpoint

SHAPE = Shape(hidden_size=64, intermediate_size=96, num_layers=1)
STYLES = pytest.mark.parametrize("style", e2m1_checkpoints.GROUPS)
NAME = "model.layers.0.mlp.up_proj"


def worth_of(weight: Weight) -> Tensor:
    assert isinstance(weight, QuantizedWeight)
    return numbers(weight).double() * weight.scales.double().repeat_interleave(weight.format.group, dim=1)


@STYLES
def test_kept_they_are_exactly_numbers_times_scales(tmp_path: Path, style: str) -> None:
    worth = e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "auto")
    for name, want in merged(worth).items():
        assert torch.equal(worth_of(tensors[name]), want), name


@STYLES
def test_decoded_they_are_the_same_rounded_once(tmp_path: Path, style: str) -> None:
    worth = e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "none")
    for name, want in merged(worth).items():
        assert torch.equal(tensors[name], want.float()), name  # type: ignore[arg-type]


@STYLES
def test_processors_compute_with_them(tmp_path: Path, style: str) -> None:
    found = library()
    e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    weight = loaded(tmp_path, "auto")["layers.0.gate_up.weight"]
    if found is None:
        pytest.skip("no C++ kernels here")
    assert linear.takes(weight)  # type: ignore[arg-type]
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    want = linear.rounded_product(weight, None, x)  # type: ignore[arg-type]
    torch.testing.assert_close(linear.packed(found, weight, None)(x).double(), want, atol=1e-5, rtol=1e-5)


@STYLES
def test_the_forecast_counts_what_they_are_held_in(tmp_path: Path, style: str) -> None:
    e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "auto")
    shape = forecast.shape(read_document(tmp_path))
    held = [weight for weight in tensors.values() if isinstance(weight, QuantizedWeight)]
    assert 16 * sum(one.format.num_bytes(*one.shape) for one in held) == shape.matrices * shape.stored_sixteenths


@pytest.mark.parametrize("exponent", [0, 1, 126, 127, 252])
def test_every_number_of_e2m1_is_exact_at_every_power_of_two(tmp_path: Path, exponent: int) -> None:
    places, scales = torch.arange(16, dtype=torch.uint8).repeat(2).view(1, 1, 32), torch.tensor([[exponent]])
    packed = e2m1_checkpoints.packed(places).flatten(-2)
    stored = {f"{NAME}.weight_packed": packed, f"{NAME}.weight_scale": scales.to(torch.uint8)}
    save_file(stored, tmp_path / "model.safetensors")
    (one,) = e2m1.joined(safetensors_checkpoint.stored(tmp_path / "model.safetensors"))
    assert one.part is not None
    part = one.part(0, 1)
    assert part.kept is not None
    want = e2m1_checkpoints.dequantized(places, scales)
    assert torch.equal(part.decoded(packed.flatten(), 1).double(), want)
    assert torch.equal(worth_of(part.kept(packed.flatten(), 1)), want)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight_scale": torch.zeros(96, 5)}, r"has shape \[96, 5\], expected \[96, 4\]"),
        ({"weight_scale": torch.zeros(96, 4)}, "type float32, expected float8_e4m3fn"),
        ({"weight_global_scale": None}, "has no .*up_proj.weight_global_scale beside it"),
        ({"weight_global_scale": torch.zeros(2)}, r"has shape \[2\], expected \[1\]"),
        ({"weight_global_scale": torch.zeros(1).half()}, "type float16, expected float32"),
        ({"weight_packed": torch.zeros(3, dtype=torch.uint8)}, "fits no matrix"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "nvfp4")
    weights = load_file(tmp_path / "model.safetensors") | {f"{NAME}.{part}": one for part, one in changed.items()}
    save_file({name: one for name, one in weights.items() if one is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        loaded(tmp_path, "auto")
