"""Rewrites a checkpoint of `checkpoints` as bitsandbytes saves it; what it returns is the truth, in float64.

Like that module it must not import our packages.
"""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fakes import checkpoints

# Dettmers et al. 2023, appendix E.
NF4 = torch.tensor((
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0
))  # fmt: skip


FP4 = torch.tensor((0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4))
FP4 = torch.cat((FP4, -FP4))


def convert(folder: Path, style: str, *, names: Container[str] | None = None) -> dict[str, Tensor]:
    """Rewrite a folder of one file. style: nf4, nf4-nested, fp4 or int8. Returns what its matrices are worth.

    names: of the matrices that are rewritten, by default all projections.
    """
    weights, stored, worth = load_file(folder / "model.safetensors"), dict[str, Tensor](), dict[str, Tensor]()
    for name, weight in weights.items():
        if checkpoints.is_matrix(name, names):
            parts, worth[name] = by_rows(name, weight) if style == "int8" else by_blocks(name, weight, style)
            stored |= parts
        else:
            stored[name] = weight
    checkpoints.write_weights(folder, stored)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": style != "int8"}})
    )
    return worth


def by_rows(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    largest = weight.abs().amax(1)
    values = (weight / largest[:, None] * 127).round().to(torch.int8)
    beside = {name: values, name.replace("weight", "SCB"): largest}
    return beside | {name + "_format": torch.tensor(0, dtype=torch.uint8)}, values * largest.double()[:, None] / 127


def by_blocks(name: str, weight: Tensor, style: str) -> tuple[dict[str, Tensor], Tensor]:
    blocks = weight.reshape(-1, 64)
    absmax = blocks.abs().amax(1)
    kind, values = ("fp4", FP4) if style == "fp4" else ("nf4", NF4)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
    beside = {"absmax": absmax, "quant_map": values}
    if style == "nf4-nested":
        offset, list_ = float(absmax.mean()), torch.linspace(-1, 1, 256)
        padded = torch.nn.functional.pad(absmax - offset, (0, -absmax.shape[0] % 256)).view(-1, 256)
        outer = padded.abs().amax(1)
        places = ((padded / outer[:, None])[..., None] - list_).abs().argmin(2).flatten()[: absmax.shape[0]]
        beside = {"absmax": places.to(torch.uint8), "quant_map": NF4}
        beside |= {"nested_absmax": outer, "nested_quant_map": list_}
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        absmax = (list_.double()[places] * outer.double().repeat_interleave(256)[: places.shape[0]]) + offset
    q = ((blocks / absmax[:, None].float())[..., None] - values).abs().argmin(2)
    pairs = q.flatten().view(-1, 2)
    beside[f"quant_state.bitsandbytes__{kind}"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    stored = {f"{name}.{part}": tensor.clone() for part, tensor in beside.items()}
    stored[name] = ((pairs[:, :1] << 4) | pairs[:, 1:]).to(torch.uint8)
    return stored, (values.double()[q] * absmax.double()[:, None]).view(weight.shape)
