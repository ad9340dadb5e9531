"""Rewrites a checkpoint of `checkpoints` with two of four numbers zero, as compressed-tensors lays out 2:4.

Like that module it must not import our packages: what it returns is the truth that they are held to.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WHAT = {"quant_method": "compressed-tensors", "format": "dense", "sparsity_config": {"format": "sparse-24-bitmask"}}


def convert(folder: Path, *, whole_names: bool = False) -> dict[str, Tensor]:
    """Rewrite a folder of one file; what its tensors are worth."""
    stored, worth = dict[str, Tensor](), dict[str, Tensor]()
    for name, weight in load_file(folder / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            stored[name] = worth[name] = weight
            continue
        worth[name] = pruned(weight)
        places = worth[name] != 0
        stem = name if whole_names else name.removesuffix(".weight")
        stored[f"{stem}.compressed"] = worth[name][places].view(weight.shape[0], -1)
        stored[f"{stem}.bitmask"] = (places.unflatten(1, (-1, 8)) * 2 ** torch.arange(8)).sum(2).to(torch.uint8)
        stored[f"{stem}.shape"] = torch.tensor(weight.shape)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": WHAT}))
    return worth


def pruned(weight: Tensor) -> Tensor:
    """The two largest of each four columns."""
    four = weight.unflatten(1, (-1, 4))
    kept = torch.zeros_like(four).scatter_(2, four.abs().topk(2, dim=2).indices, 1.0)
    chosen: Tensor = four * kept
    return chosen.flatten(1)
