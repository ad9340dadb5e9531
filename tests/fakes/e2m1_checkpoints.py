"""Rewrites checkpoints in numbers of 4 bits with an exponent (e2m1), as published ones are laid out.

Like `checkpoints` it must not import our packages: what it returns is the truth that they are held to, in float64, from
the formats' definitions (OCP Microscaling Formats 1.0; NVIDIA's NVFP4).
"""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fakes import checkpoints

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
WORTH = torch.tensor([*E2M1, *(-worth for worth in E2M1)], dtype=torch.float64)
GROUPS = {"mxfp4": 32, "nvfp4": 16, "modelopt": 16}


def convert_experts(folder: Path) -> dict[str, Tensor]:
    """Rewrite a checkpoint of gpt-oss of one file with its experts in MXFP4. Sizes must be multiples of 32.

    Returns what its tensors are worth, as they were: experts (experts, columns, rows) in float64.
    """
    weights = load_file(folder / "model.safetensors")
    stored, worth = dict[str, Tensor](), dict(weights)
    for name, weight in weights.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            stored[name] = weight
            continue
        places, exponents = rounded(weight.transpose(1, 2).contiguous())
        stored[f"{name}_blocks"] = packed(places)
        stored[f"{name}_scales"] = exponents
        worth[name] = dequantized(places, exponents).transpose(1, 2)
    not_converted = ["model.layers.*.self_attn", "lm_head"]
    _save(folder, stored, {"quant_method": "mxfp4", "modules_to_not_convert": not_converted})
    return worth


def convert(folder: Path, style: str, *, names: Container[str] | None = None) -> dict[str, Tensor]:
    """Rewrite a folder of one file. style: of GROUPS. Returns what its tensors are worth: matrices in float64.

    names: of the matrices that are rewritten, by default all projections.
    """
    weights, stored, worth = load_file(folder / "model.safetensors"), dict[str, Tensor](), dict[str, Tensor]()
    for name, weight in weights.items():
        if not checkpoints.is_matrix(name, names) or "eh_proj" in name:
            stored[name] = worth[name] = weight
            continue
        parts, worth[name] = _mxfp4(weight) if style == "mxfp4" else _nvfp4(weight, style)
        stored |= {name.removesuffix("weight") + part: tensor for part, tensor in parts.items()}
    _save(folder, stored, described(style))
    return worth


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP4 of (..., rows, columns): places in WORTH (..., rows, groups, 32) and exponents (..., rows, groups)."""
    grouped = weight.double().unflatten(-1, (-1, 32))
    exponents = torch.floor(torch.log2(grouped.abs().amax(dim=-1).clamp(min=1e-30))) - 2
    return _nearest(grouped / torch.exp2(exponents).unsqueeze(-1)), (exponents + 127).to(torch.uint8)


def dequantized(places: Tensor, exponents: Tensor) -> Tensor:
    """(..., rows, columns) float64."""
    return (WORTH[places.long()] * torch.exp2(exponents.double() - 127).unsqueeze(-1)).flatten(-2)


def packed(places: Tensor) -> Tensor:
    """Two to a byte."""
    return (places[..., 0::2] | places[..., 1::2] << 4).contiguous()


def _mxfp4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    places, exponents = rounded(weight)
    parts = {"weight_packed": packed(places).flatten(-2), "weight_scale": exponents}
    return parts, dequantized(places, exponents)


def _nvfp4(weight: Tensor, style: str) -> tuple[dict[str, Tensor], Tensor]:
    grouped = weight.double().unflatten(-1, (-1, 16))
    largest = grouped.abs().amax(dim=-1)
    outer = (448 * 6 / largest.max()).float().view(1)
    scales = (largest / 6 * outer).to(torch.float8_e4m3fn)
    outer = outer if style == "nvfp4" else 1 / outer
    wide = (scales.float() / outer if style == "nvfp4" else scales.float() * outer).double().unsqueeze(-1)
    places = _nearest(torch.where(wide > 0, grouped / wide, 0.0))
    values = packed(places).flatten(-2)
    worth = (WORTH[places.long()] * wide).flatten(-2)
    if style == "modelopt":
        spare = {"input_scale": torch.tensor(0.5)}
        return {"weight": values, "weight_scale": scales, "weight_scale_2": outer.view(())} | spare, worth
    spare = {"input_global_scale": torch.tensor([0.5])}
    return {"weight_packed": values, "weight_scale": scales, "weight_global_scale": outer} | spare, worth


def _nearest(scaled: Tensor) -> Tensor:
    return (scaled.unsqueeze(-1) - WORTH).abs().argmin(dim=-1).to(torch.uint8)


def described(style: str) -> dict[str, Any]:
    """quantization_config as the tools that write such files have it."""
    if style == "modelopt":
        return {"quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt"}}
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": GROUPS[style]}
    if style == "mxfp4":
        weights["strategy"] = "group"
    group = {"targets": ["Linear"], "weights": weights, "format": f"{style}-pack-quantized"}
    return {
        "quant_method": "compressed-tensors",
        "format": f"{style}-pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _save(folder: Path, stored: dict[str, Tensor], quantization: dict[str, Any]) -> None:
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
