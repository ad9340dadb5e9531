"""Checkpoints in e2m1 are worth what their numbers times their scales are, kept or decoded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes import checkpoints, e2m1_checkpoints
from fakes.checkpoints import Shape, merged
from fakes.loaded_weights import loaded, worth
from kvasir_api import forecast, inspection
from kvasir_api.options import Quantization
from kvasir_api.stored_bits import Compute
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.cpu import linear
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.quantized import QuantizedWeight
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.models.config import read_document
from kvasir_runtime.weights import e2m1, quant_formats, safetensors_checkpoint
from kvasir_runtime.weights.quant_formats import DeviceFormats

OFF = {"mxfp4": 0.0, "nvfp4": 2**-23, "modelopt": 2**-23}
"""Relative: the judge rounds the product of two scales to float32, and so do units."""
SHAPE = Shape(hidden_size=64, intermediate_size=96, num_layers=1)
STYLES = pytest.mark.parametrize("style", e2m1_checkpoints.GROUPS)
NAME = "model.layers.0.mlp.up_proj"


@STYLES
@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("auto", 4)])
def test_kept_they_are_numbers_times_scales(tmp_path: Path, style: str, quantization: Quantization, bits: int) -> None:
    stored = e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, quantization)
    for name, want in merged(stored).items():
        weight = tensors[name]
        if name.endswith(("qkv.weight", "output.weight", "gate_up.weight", "down.weight")):
            assert isinstance(weight, QuantizedWeight)
            assert weight.format.bits == bits
        torch.testing.assert_close(worth(weight), want.double(), rtol=OFF[style], atol=0.0)


@STYLES
def test_decoded_they_are_the_same_rounded(tmp_path: Path, style: str) -> None:
    stored = e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "none")
    for name, want in merged(stored).items():
        torch.testing.assert_close(tensors[name], want.float(), rtol=OFF[style], atol=0.0)


@pytest.mark.parametrize("style", ["mxfp4", "nvfp4"])
def test_ranks_have_the_numbers_of_the_whole(tmp_path: Path, style: str) -> None:
    """Rows of a rank, of matrices that are one weight together, and columns, which are whole groups."""
    e2m1_checkpoints.convert(checkpoints.write(tmp_path, replace(SHAPE, intermediate_size=128)), style)
    whole, *ranks = (loaded(tmp_path, "auto", rank=rank) for rank in (Rank(), Rank(0, 2), Rank(1, 2)))
    assert all(one["layers.0.down.weight"].format.bits == 4 for one in ranks)  # type: ignore[union-attr]
    downs = torch.cat([worth(one["layers.0.down.weight"]) for one in ranks], dim=1)
    assert torch.equal(downs, worth(whole["layers.0.down.weight"]))
    halves = [worth(one["layers.0.gate_up.weight"]).chunk(2) for one in ranks]
    both = torch.cat([half[part] for part in range(2) for half in halves])
    assert torch.equal(both, worth(whole["layers.0.gate_up.weight"]))


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
@pytest.mark.parametrize(("device", "formats"), [("cuda", quant_formats.CARDS), ("cpu", quant_formats.PROCESSORS)])
def test_the_forecast_counts_what_they_are_held_in(
    tmp_path: Path, style: str, device: Compute, formats: DeviceFormats
) -> None:
    e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "auto", device=formats)
    shape = inspection.held_on(forecast.shape(read_document(tmp_path)), device)
    held = [weight.format for weight in tensors.values() if isinstance(weight, QuantizedWeight)]
    sizes = [weight.shape for weight in tensors.values() if isinstance(weight, QuantizedWeight)]
    taken = 16 * sum(formats.num_bytes(one, *size) for one, size in zip(held, sizes, strict=True))
    units = 64 * sum(rows for rows, _ in sizes) * (device == "cuda")  # left out, as they are nothing in long rows
    assert taken - units == shape.matrices * shape.held.stored


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
    assert torch.equal(worth(part.kept(packed.flatten(), 1)), want)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weight_scale": torch.zeros(96, 5)}, r"has shape \[96, 5\], expected \[96, 4\]"),
        ({"weight_scale": torch.zeros(96, 4)}, "type float32, expected float8_e4m3fn"),
        ({"weight_global_scale": None}, "has no .*up_proj.weight_global_scale beside it"),
        ({"weight_global_scale": torch.zeros(2)}, r"has shape \[2\], expected \[1\]"),
        ({"weight_global_scale": torch.zeros(1).half()}, "type float16, expected float32"),
        *(
            ({"weight_global_scale": torch.tensor([one])}, "weight_global_scale is .* expected a positive number")
            for one in (0.0, -1.0, float("inf"), float("nan"), 1e-45)
        ),
        *(
            ({"weight_scale": torch.full((96, 4), one).to(torch.float8_e4m3fn)}, "weight_scale has scales that are neg")
            for one in (-0.5, -0.0, float("nan"))
        ),
        ({"weight_packed": torch.zeros(3, dtype=torch.uint8)}, "fits no matrix"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    e2m1_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "nvfp4")
    weights = load_file(tmp_path / "model.safetensors") | {f"{NAME}.{part}": one for part, one in changed.items()}
    save_file({name: one for name, one in weights.items() if one is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        loaded(tmp_path, "auto")
