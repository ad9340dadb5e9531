"""Checkpoints in fp8 are worth what their numbers times their scales are, kept or decoded."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import checkpoints, fp8_checkpoints
from fakes.checkpoints import Shape
from fakes.loaded_weights import loaded
from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.quantized import FP8, QuantFormat, QuantizedWeight
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.weights import fp8_scales

SIZES = {"hidden_size": 256, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32, "num_layers": 1}
# Rows and columns of a last block that is narrower: 320 is two blocks and a half.
SHAPE = Shape(**SIZES, intermediate_size=320)
STYLES = pytest.mark.parametrize("style", ["tensor", "channel", "block"])


def merged(worth: dict[str, Tensor]) -> dict[str, Tensor]:
    return checkpoints.merged(worth) | {"head.weight": worth["lm_head.weight"]}


@STYLES
@pytest.mark.parametrize("num_shards", [1, 3])
def test_decoded_they_are_numbers_times_scales(tmp_path: Path, style: str, num_shards: int) -> None:
    worth = fp8_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style, num_shards=num_shards)
    tensors = loaded(tmp_path, "none")
    for name, want in merged(worth).items():
        assert torch.equal(tensors[name], want), name  # type: ignore[arg-type]


@STYLES
def test_kept_they_are_the_same(tmp_path: Path, style: str) -> None:
    worth = fp8_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), style)
    tensors = loaded(tmp_path, "auto")
    for name, want in merged(worth).items():
        found = tensors[name]
        if name == "head.weight":
            assert isinstance(found, Tensor)
            assert torch.equal(found, want)
        elif style == "block" and name == "layers.0.down.weight":  # no whole blocks: rounded once more
            assert isinstance(found, QuantizedWeight)
            assert found.format == QuantFormat(bits=8)
            step = want.view(want.shape[0], -1, 32).abs().amax(dim=2).repeat_interleave(32, dim=1) / 127
            assert ((quantized.dequantized(found) - want).abs() <= 0.501 * step).all()
        else:
            assert isinstance(found, QuantizedWeight)
            assert found.format == (FP8 if style != "block" else fp8_scales.BY_BLOCK)
            assert torch.equal(quantized.dequantized(found), want), name


def test_requested_in_other_bits_they_are_quantized_again(tmp_path: Path) -> None:
    worth = fp8_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "block")
    found = loaded(tmp_path, "int8")["layers.0.output.weight"]
    assert isinstance(found, QuantizedWeight)
    assert found.format == QuantFormat(bits=8)
    torch.testing.assert_close(
        quantized.dequantized(found), merged(worth)["layers.0.output.weight"], rtol=0.0, atol=2e-3
    )


def test_a_processor_holds_them_as_integers(tmp_path: Path) -> None:
    fp8_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "channel")
    options = ServeOptions(model=str(tmp_path), kv_cache_tokens=64, dtype="bfloat16", device="cpu")
    assert build(options, lambda _: None).facts.quantization == "int8"


@pytest.mark.parametrize("shape", [(256,), (256, 0), (2, 128, 256)])
def test_what_is_scaled_and_no_matrix_is_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    fp8_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "channel")
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.self_attn.o_proj.weight"] = torch.zeros(shape).to(torch.float8_e4m3fn)
    checkpoints.write_weights(tmp_path, weights, num_shards=1)
    with pytest.raises(ModelError, match=r"o_proj\.weight has shape .*, which fits no matrix"):
        loaded(tmp_path, "none")


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (None, r"o_proj.weight has type F8_E4M3, and no .*o_proj.weight_scale is beside it"),
        (torch.ones(3), r"o_proj.weight_scale has shape \[3\], expected \[1\], \[256, 1\] or \[2, 2\]"),
        (torch.ones(256, 2), r"shape \[256, 2\]"),
        (torch.ones(0), "o_proj.weight_scale is empty"),
    ],
)
def test_scales_that_are_missing_or_of_another_shape_are_named(
    tmp_path: Path, scale: Tensor | None, message: str
) -> None:
    fp8_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), "channel")
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.o_proj.weight_scale"
    weights.pop(name)
    if scale is not None:
        weights[name] = scale
    checkpoints.write_weights(tmp_path, weights, num_shards=1)
    with pytest.raises(ModelError, match=message) as caught:
        loaded(tmp_path, "none")
    assert str(tmp_path / "model.safetensors") in str(caught.value)


@STYLES
def test_experts_keep_theirs(tmp_path: Path, style: str) -> None:
    shape = Shape(**SIZES, family="qwen3_moe", num_experts=3, expert_size=128)
    worth = fp8_checkpoints.convert(checkpoints.write(tmp_path, shape), style, num_shards=2)
    experts = [f"model.layers.0.mlp.experts.{expert}." for expert in range(3)]
    wanted = {
        "gate_up": [worth[f"{expert}{name}_proj.weight"] for expert in experts for name in ("gate", "up")],
        "down": [worth[f"{expert}down_proj.weight"] for expert in experts],
    }
    tensors = loaded(tmp_path, "auto")
    assert isinstance(tensors["layers.0.router"], Tensor)
    for name, parts in wanted.items():
        found = tensors[f"layers.0.experts.{name}.weight"]
        assert isinstance(found, QuantizedWeight)
        assert torch.equal(quantized.dequantized(found), torch.cat(parts))
