"""Rewrites a checkpoint of `checkpoints` in integers with scales and zeros beside them, as published ones are laid out.

Like that module it must not import our packages: what it returns is the truth that they are held to, in float64, from
the formulas of the tools that write such files.
"""

import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import checkpoints

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """method: gptq, gptq_v2, awq, packed or int8 (both of compressed-tensors). group: 0 for all columns.

    act_order: columns are dealt to groups by chance, the same for all matrices with as many columns; own_order: for
    each matrix its own. biases: every matrix has one, of zeros.
    """

    method: str
    bits: int = 4
    group: int = 32
    symmetric: bool = True
    act_order: bool = False
    own_order: bool = False
    scales: torch.dtype = torch.float16
    biases: bool = False


def convert(
    folder: Path, style: Style, *, num_shards: int = 1, names: Container[str] | None = None
) -> dict[str, Tensor]:
    """Rewrite a folder of one file. Returns what its tensors are worth: matrices in float64.

    names: of the matrices that are rewritten, by default all projections.
    """
    weights, stored, worth = load_file(folder / "model.safetensors"), dict[str, Tensor](), dict[str, Tensor]()
    for number, (name, weight) in enumerate(weights.items()):
        if not checkpoints.is_matrix(name, names):
            stored[name] = worth[name] = weight
            continue
        parts, worth[name] = quantized(weight.double(), style, number if style.own_order else 0)
        stored |= {name.removesuffix("weight") + part: tensor.contiguous() for part, tensor in parts.items()}
        if style.biases:
            stored[name.removesuffix("weight") + "bias"] = torch.zeros(weight.shape[0], dtype=torch.float16)
    (folder / "model.safetensors").unlink()
    checkpoints.write_weights(folder, stored, num_shards=num_shards)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": described(style)}))
    return worth


def quantized(weight: Tensor, style: Style, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of one matrix, and what they are worth."""
    rows, columns = weight.shape
    size, most = style.group or columns, 2**style.bits - 1
    groups = -(-columns // size)
    index = torch.arange(columns) // size
    if style.act_order:
        index = index[torch.randperm(columns, generator=torch.Generator().manual_seed(seed))]
    q, scales, zeros = torch.zeros(rows, columns), torch.zeros(rows, groups), torch.zeros(rows, groups)
    for group in range(groups):
        of = weight[:, index == group]
        low, high = of.amin(1).clamp(max=0), of.amax(1).clamp(min=0)
        if style.symmetric:
            scale = (of.abs().amax(1) / 2 ** (style.bits - 1)).to(style.scales)
            zero = torch.full((rows,), float(2 ** (style.bits - 1)))
        else:
            scale = ((high - low) / most).to(style.scales)
            zero = (-low / scale.double()).round().clamp(1, most)
        scales[:, group], zeros[:, group] = scale.float(), zero.float()
        q[:, index == group] = (of / scale[:, None].double() + zero[:, None]).round().clamp(0, most).float()
    worth = (q.double() - zeros.double()[:, index]) * scales.double()[:, index]
    return laid_out(q.long(), scales.to(style.scales), zeros.long(), index, style), worth


def laid_out(q: Tensor, scales: Tensor, zeros: Tensor, index: Tensor, style: Style) -> dict[str, Tensor]:
    """q: (rows, columns); scales, zeros: (rows, groups); all numbers without sign."""
    bits = style.bits
    if style.method in ("gptq", "gptq_v2"):
        less = 1 if style.method == "gptq" else 0
        return {
            "qweight": words(q, bits).T,
            "qzeros": words((zeros.T - less) % 2**bits, bits),
            "scales": scales.T,
            "g_idx": index.int(),
        }
    if style.method == "awq":
        return {"qweight": words(q.T, bits, AWQ_ORDER), "qzeros": words(zeros.T, bits, AWQ_ORDER), "scales": scales.T}
    middle = 2 ** (bits - 1)
    beside = {"weight_scale": scales}
    if style.method == "int8":
        if not style.symmetric:
            beside["weight_zero_point"] = (zeros - middle).to(torch.int8)
        return beside | {"weight": (q - middle).to(torch.int8)}
    if not style.symmetric:
        beside["weight_zero_point"] = words(zeros.T, bits).T
    if style.act_order:
        beside["weight_g_idx"] = index.int()
    return beside | {"weight_packed": words(q, bits), "weight_shape": torch.tensor(q.shape)}


def words(q: Tensor, bits: int, order: tuple[int, ...] = ()) -> Tensor:
    """Rows of numbers as rows of int32, the first in the lowest bits, or those of an order; zeros fill the last."""
    each = 32 // bits
    filled = torch.nn.functional.pad(q, (0, -q.shape[1] % each)).view(q.shape[0], -1, each)
    out = torch.zeros(filled.shape[:2], dtype=torch.int64)
    for place, number in enumerate(order or range(each)):
        out |= filled[:, :, number] << (bits * place)
    return torch.where(out >= 2**31, out - 2**32, out).int()


def described(style: Style) -> dict[str, Any]:
    """quantization_config as the tools that write such files have it."""
    group = style.group or -1
    if style.method in ("gptq", "gptq_v2"):
        return {
            "quant_method": "gptq",
            "bits": style.bits,
            "group_size": group,
            "desc_act": style.act_order,
            "sym": style.symmetric,
            "checkpoint_format": style.method,
        }
    if style.method == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    strategy = {"strategy": "group", "group_size": group} if style.group else {"strategy": "channel"}
    weights = {"num_bits": style.bits, "type": "int", "symmetric": style.symmetric, "dynamic": False} | strategy
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if style.method == "int8" else "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations if style.method == "int8" else None,
            }
        },
        "ignore": ["lm_head"],
    }
