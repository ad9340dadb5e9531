"""Experts that a checkpoint has as one tensor are those of their own; MXFP4 is worth what its definition says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fakes import e2m1_checkpoints, family_checkpoints
from fakes.loaded_weights import loaded, worth
from kvasir_api.options import Quantization
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import act_and_mul
from kvasir_runtime.kernels.quantized import QuantizedWeight
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.models import gpt_oss
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.quant_formats import DeviceFormats

NAME = "model.layers.1.mlp.experts.gate_up_proj"
PARTS = {"blocks": (16,), "scales": ()}


def written(folder: Path, *, packed: bool) -> dict[str, Tensor]:
    family_checkpoints.write(folder, "gpt-oss")
    return e2m1_checkpoints.convert_experts(folder) if packed else load_file(folder / "model.safetensors")


def expected(worth: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """Expert after expert, gates before ups, which lie in turn in the file."""
    stem = f"model.layers.{layer}.mlp.experts."
    both, bias = worth[stem + "gate_up_proj"].transpose(1, 2), worth[stem + "gate_up_proj_bias"]
    halves = torch.cat((both[:, 0::2], both[:, 1::2]), dim=1), torch.cat((bias[:, 0::2], bias[:, 1::2]), dim=1)
    ours = f"layers.{layer}.experts."
    return {
        ours + "gate_up.weight": halves[0].flatten(0, 1),
        ours + "gate_up.bias": halves[1].flatten(),
        ours + "down.weight": worth[stem + "down_proj"].transpose(1, 2).flatten(0, 1),
        ours + "down.bias": worth[stem + "down_proj_bias"].flatten(),
        f"layers.{layer}.sinks": worth[f"model.layers.{layer}.self_attn.sinks"],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantization", ["none", "auto"])
@pytest.mark.parametrize("device", [quant_formats.CARDS, quant_formats.PROCESSORS])
def test_mxfp4_is_exact_in_every_place(
    tmp_path: Path, quantization: Quantization, device: DeviceFormats, dtype: torch.dtype
) -> None:
    stored = written(tmp_path, packed=True)
    tensors = loaded(tmp_path, quantization, dtype, device=device)
    for layer in range(2):
        for name, want in expected(stored, layer).items():
            kept = name.endswith(".weight")
            assert isinstance(tensors[name], QuantizedWeight) == (kept and quantization == "auto")
            assert torch.equal(worth(tensors[name]), want.to(torch.float64 if kept else dtype).double()), name


def test_in_full_they_are_the_files_numbers(tmp_path: Path) -> None:
    stored = written(tmp_path, packed=False)
    tensors = loaded(tmp_path, "auto", torch.float32)
    for name, want in expected(stored, 1).items():
        assert torch.equal(worth(tensors[name]), want.double()), name


@pytest.mark.parametrize("packed", [True, False])
def test_two_ranks_have_the_whole_together(tmp_path: Path, packed: bool) -> None:
    """96 columns of an expert are three groups of 32, which two ranks cannot divide: decoded they can."""
    stored = written(tmp_path, packed=packed)
    parts = [loaded(tmp_path, "none", torch.float32, Rank(index, 2)) for index in range(2)]
    want = expected(stored, 0)
    experts, inner, hidden = 5, 96, 64
    gates = [part["layers.0.experts.gate_up.weight"].view(experts, 2, inner // 2, hidden) for part in parts]
    assert torch.equal(
        torch.cat(gates, dim=2).view(-1, hidden).double(), want["layers.0.experts.gate_up.weight"].double()
    )
    biases = [part["layers.0.experts.gate_up.bias"].view(experts, 2, inner // 2) for part in parts]
    assert torch.equal(torch.cat(biases, dim=2).flatten(), want["layers.0.experts.gate_up.bias"])
    downs = torch.cat([part["layers.0.experts.down.weight"] for part in parts], dim=1)
    assert torch.equal(downs.double(), want["layers.0.experts.down.weight"].double())
    assert torch.equal(torch.cat([part["layers.0.sinks"] for part in parts]), want["layers.0.sinks"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({f"{NAME}_scales": None}, "has no .*gate_up_proj_scales beside it"),
        ({f"{NAME}_blocks": None}, "has no gate_up_proj_blocks beside it"),
        ({f"{NAME}_scales": torch.zeros(5, 192, 1, dtype=torch.uint8)}, r"its scales \[5, 192, 1\]"),
        ({f"{NAME}_scales": torch.zeros(5, 192, 2)}, "float32, expected uint8"),
        (
            {f"{NAME}_scales": torch.full((5, 192, 2), 255, dtype=torch.uint8)},
            "gate_up_proj_scales has scales that are no numbers",
        ),
        ({f"{NAME}_blocks": torch.zeros(5, 192, 2, 8, dtype=torch.uint8)}, r"\[experts, rows, groups, 16\]"),
        ({f"{NAME}_bias": torch.zeros(5)}, r"expected \[experts, rows\]"),
        ({f"{NAME}_bias": torch.zeros(0, 192)}, r"shape \[0, 192\], expected 1 to 4096 experts"),
        ({f"{NAME}_bias": torch.zeros(5000, 1)}, r"shape \[5000, 1\], expected 1 to 4096 experts"),
        ({NAME: torch.zeros(10**9, 0, 5)}, r"shape \[1000000000, 0, 5\], expected 1 to 4096 experts"),
        (
            {f"{NAME}_{part}": torch.zeros(0, 192, 2, *rest, dtype=torch.uint8) for part, rest in PARTS.items()},
            r"shape \[0, 192, 2, 16\], expected 1 to 4096 experts",
        ),
        ({f"{NAME}_bias": torch.zeros(4, 192)}, "experts.4.gate_up_proj.bias is missing"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    written(tmp_path, packed=True)
    weights = load_file(tmp_path / "model.safetensors") | changed
    kept = {name: weight for name, weight in weights.items() if weight is not None}
    save_file(kept, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        loaded(tmp_path, "auto", torch.float32)


def test_another_gate_is_refused(tmp_path: Path) -> None:
    family_checkpoints.write(tmp_path, "gpt-oss")
    config = read_config(tmp_path, json.dumps({"swiglu_limit": 6.0}))
    with pytest.raises(ModelError, match=r"swiglu_limit 6.0 of GPT-OSS is not supported; expected 7.0"):
        family_of(config).spec(config)
    assert gpt_oss.GATE == {"swiglu_limit": act_and_mul.CLAMP, "swiglu_alpha": act_and_mul.SLOPE}
