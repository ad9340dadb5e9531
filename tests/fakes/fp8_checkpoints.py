"""Rewrites a checkpoint of `checkpoints` in e4m3 with scales beside the matrices, as published ones are laid out.

Like that module it must not import our packages: what it returns is the truth that they are held to.
"""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import checkpoints

BLOCK = 128


def convert(folder: Path, style: str, *, num_shards: int = 1, names: Container[str] | None = None) -> dict[str, Tensor]:
    """Rewrite a folder of one file. style: tensor, channel or block. Returns what its tensors are
    worth, computed in float64 and rounded to float32.

    names: of the matrices that are rewritten, by default all projections.
    """
    weights, stored, worth = load_file(folder / "model.safetensors"), dict[str, Tensor](), dict[str, Tensor]()
    for name, weight in weights.items():
        if not checkpoints.is_matrix(name, names) and (names is not None or not name.endswith("proj_with_mqa.weight")):
            stored[name] = worth[name] = weight
            continue
        values, scale, wide = rounded(weight.float(), style)
        stored[name], worth[name] = values, (values.double() * wide.double()).float()
        stored[name + ("_scale_inv" if style == "block" else "_scale")] = scale
        if style == "tensor":
            stored[name.removesuffix("weight") + "input_scale"] = torch.tensor([0.5])
    (folder / "model.safetensors").unlink()
    checkpoints.write_weights(folder, stored, num_shards=num_shards)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": described(style)}))
    return worth


def rounded(weight: Tensor, style: str) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers, scales as they are stored, and scales for each number."""
    rows, columns = weight.shape
    if style == "tensor":
        scale = (weight.abs().max() / 448).view(1)
        wide = scale.expand(rows, columns)
    elif style == "channel":
        scale = (weight.abs().amax(dim=1, keepdim=True) / 448).bfloat16()
        wide = scale.float().expand(rows, columns)
    else:
        blocks = torch.zeros(-(-rows // BLOCK) * BLOCK, -(-columns // BLOCK) * BLOCK)
        blocks[:rows, :columns] = weight
        largest = blocks.view(blocks.shape[0] // BLOCK, BLOCK, -1, BLOCK).abs().amax(dim=(1, 3))
        scale = largest / 448
        wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
    values = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
    return values, scale, wide


def described(style: str) -> dict[str, Any]:
    """quantization_config as the tools that write such files have it."""
    if style == "block":
        return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
    if style == "tensor":
        return {"quant_method": "fp8", "activation_scheme": "static"}
    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    activations = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
