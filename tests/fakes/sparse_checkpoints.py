"""Rewrites a checkpoint of `checkpoints` with two of four numbers zero, as compressed-tensors lays out 2:4.

Like that module it must not import our packages: what it returns is the truth that they are held to.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WHAT = {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}
Quantize = Callable[[Path], dict[str, Tensor]]


def convert(folder: Path, *, quantize: Quantize | None = None, whole_names: bool = False) -> dict[str, Tensor]:
    """Rewrite a folder of one file; what its tensors are worth. quantize: rewrites it before zeros are left out."""
    file, config_file = folder / "model.safetensors", folder / "config.json"
    worth = {
        name: pruned(weight) if name.endswith("proj.weight") else weight for name, weight in load_file(file).items()
    }
    kept = {name: weight != 0 for name, weight in worth.items() if name.endswith("proj.weight")}
    save_file(worth, file, metadata={"format": "pt"})
    if quantize is not None:
        worth = quantize(folder)
    stored = load_file(file)
    for name, places in kept.items():
        weight = stored.pop(name)
        chosen = weight.view(torch.uint8).unflatten(1, (-1, weight.itemsize))[places].view(weight.dtype)
        stem = name if whole_names else name.removesuffix(".weight")
        stored[f"{stem}.compressed"] = chosen.view(weight.shape[0], -1)
        stored[f"{stem}.bitmask"] = (places.unflatten(1, (-1, 8)) * 2 ** torch.arange(8)).sum(2).to(torch.uint8)
        stored[f"{stem}.shape"] = torch.tensor(weight.shape).view(2, 1)
    save_file(stored, file, metadata={"format": "pt"})
    config = json.loads(config_file.read_text())
    described = config.get("quantization_config", {}) | WHAT | ({"format": "dense"} if quantize is None else {})
    config_file.write_text(json.dumps(config | {"quantization_config": described}))
    return worth


def pruned(weight: Tensor) -> Tensor:
    """The two largest of each four columns."""
    four = weight.unflatten(1, (-1, 4))
    kept = torch.zeros_like(four).scatter_(2, four.abs().topk(2, dim=2).indices, 1.0)
    chosen: Tensor = four * kept
    return chosen.flatten(1)
