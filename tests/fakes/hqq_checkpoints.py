"""Rewrites a checkpoint of `checkpoints` as transformers saves a model of HQQ, and returns the truth, in float64.

Like that module it must not import our packages.
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

# Name, bits of a number, numbers of a word, and its type, by how many bits a number is said to have.
PACKINGS = {
    8: ("8bit_u8", 8, 1, torch.uint8),
    5: ("8bit_u8", 8, 1, torch.uint8),
    4: ("4bit_u8", 4, 2, torch.uint8),
    3: ("3bit_32", 3, 10, torch.int32),
    2: ("2bit_u8", 2, 4, torch.uint8),
    1.58: ("2bit_u8", 2, 4, torch.uint8),
    1: ("1bit_u8", 1, 8, torch.uint8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """dtype: that of scales and zeros, and of W_q where it is viewed as float. bits: 8, 5, 4, 3, 2, 1.58 or 1."""

    bits: float = 4
    group: int = 64
    axis: int = 1
    dtype: torch.dtype = torch.float16
    view_as_float: bool = False


def convert(
    folder: Path, style: Style, *, num_shards: int = 1, names: Container[str] | None = None
) -> dict[str, Tensor]:
    """Rewrite a folder of one file. Returns what its tensors are worth: matrices in float64.

    names: of the matrices that are rewritten, by default all projections.
    """
    weights, stored, worth = load_file(folder / "model.safetensors"), dict[str, Tensor](), dict[str, Tensor]()
    for name, weight in weights.items():
        if checkpoints.is_matrix(name, names):
            parts, worth[name] = quantized(weight.double(), style)
            stored |= {name.removesuffix("weight") + part: tensor for part, tensor in parts.items()}
        else:
            stored[name] = worth[name] = weight
    (folder / "model.safetensors").unlink()
    checkpoints.write_weights(folder, stored, num_shards=num_shards)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": described(style)}))
    return worth


def quantized(weight: Tensor, style: Style) -> tuple[dict[str, Tensor], Tensor]:
    """What a module saves, and what its matrix is worth. Zeros are no integers."""
    lines = weight.reshape(-1, style.group) if style.axis else weight.reshape(style.group, -1)
    low, high = lines.amin(style.axis, keepdim=True), lines.amax(style.axis, keepdim=True)
    most = round(2**style.bits - 1)
    scale = ((high - low) / most).to(style.dtype)
    zero = (-low / scale.double()).to(style.dtype)
    q = (lines / scale.double() + zero.double()).round().clamp(0, most)
    worth = ((q - zero.double()) * scale.double()).reshape(weight.shape)
    name, _, _, word = PACKINGS[style.bits]
    values = in_words(q.long(), style.bits)
    parts = {
        "W_q": values.view(style.dtype) if style.view_as_float else values,
        "scale": scale,
        "zero": zero,
        "nbits": torch.tensor(style.bits, dtype=torch.int32 if isinstance(style.bits, int) else torch.float32),
        "group_size": torch.tensor(style.group, dtype=torch.int32),
        "axis": torch.tensor(style.axis, dtype=torch.int32),
        "shape": torch.tensor(weight.shape),
        "packing": letters(name),
        "unpack_view_dtype": letters(str(word)),
        "compute_dtype": letters(str(style.dtype)),
    }
    flags = {"quant_scale": 0, "quant_zero": 0, "offload_meta": 0, "channel_wise": 1, "optimize": 1, "round_zero": 0}
    flags |= {"encoded_state_dict": 1, "stores_quant_config": 1, "view_as_float": int(style.view_as_float)}
    return parts | {part: torch.tensor(flag, dtype=torch.uint8) for part, flag in flags.items()}, worth


def in_words(q: Tensor, bits: float) -> Tensor:
    """Lines of words, each of one line of every equal part: the first has the highest bits, zeros fill the last."""
    _, width, each, dtype = PACKINGS[bits]
    parts = torch.nn.functional.pad(q, (0, 0, 0, -q.shape[0] % each)).view(each, -1, q.shape[1])
    words = sum(part << (width * (each - 1 - number)) for number, part in enumerate(parts))
    assert isinstance(words, Tensor)
    return words.to(dtype)


def letters(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def described(style: Style) -> dict[str, Any]:
    """quantization_config as transformers writes it."""
    weights = {"nbits": style.bits, "group_size": style.group, "axis": style.axis, "view_as_float": style.view_as_float}
    weights |= {"channel_wise": True, "optimize": True, "round_zero": style.bits == 4}
    params = {"weight_quant_params": weights, "scale_quant_params": None, "zero_quant_params": None}
    return {
        "quant_method": "hqq",
        "quant_config": params | {"offload_meta": False},
        "skip_modules": ["lm_head"],
    }
