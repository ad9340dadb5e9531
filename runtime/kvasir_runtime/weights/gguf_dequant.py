"""Decode the block formats of GGUF files: bytes in, float32 out (plain types as they are). Called by `gguf_checkpoint`.

Each format stores runs of 32 or 256 values of a row with scales of their own; the layouts are those of ggml-common.h.
The arithmetic is ggml's in its order, so results are equal to the last bit.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight, packed

_PLAIN: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def decoded(kind: str, raw: Tensor) -> Tensor:
    """Values of whole blocks: (bytes,) uint8 -> (values,), float32 or the plain type that is stored."""
    if kind in _PLAIN:
        return raw.view(_PLAIN[kind])
    num_bytes, decode = _BLOCKS[kind]
    return decode(raw.view(-1, num_bytes)).reshape(-1)


def kept(kind: str, raw: Tensor, rows: int) -> QuantizedWeight:
    """Rows of Q8_0, Q4_0 or Q4_K in the format that holds the same numbers and scales: exactly what `decoded` gives."""
    blocks = raw.view(-1, _BLOCKS[kind][0])
    if kind == "Q8_0":
        values, scales = blocks[:, 2:].view(torch.int8).reshape(rows, -1), _half(blocks, 0)
        return QuantizedWeight(format=QuantFormat(bits=8), values=values, scales=scales.reshape(rows, -1), minima=None)
    if kind == "Q4_0":
        q, scales = _nibbles(blocks[:, 2:], 16), _half(blocks, 0)
        minima = 8 * scales
    else:
        q, (scales, minima) = _nibbles(blocks[:, 16:], 32), _scales(blocks)
    wide = kind == "Q4_K"
    return QuantizedWeight(
        format=QuantFormat(bits=4, wide=wide),
        values=packed(q.reshape(rows, -1)),
        scales=scales.reshape(rows, -1),
        minima=minima.reshape(rows, -1),
    )


def _q8_0(blocks: Tensor) -> Tensor:
    """d float16, 32 int8: d * q."""
    return _half(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _q4_0(blocks: Tensor) -> Tensor:
    """d float16, 16 bytes whose low halves are the first 16 values: d * (q - 8)."""
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:], 16).view(-1, 32).float() - 8)


def _q4_k(blocks: Tensor) -> Tensor:
    """d, dmin float16, 8 pairs of 6-bit scale and minimum, 128 bytes: d * scale * q - dmin * minimum."""
    scale, minimum = _scales(blocks)
    q = _nibbles(blocks[:, 16:], 32).view(-1, 8, 32)
    return scale * q.float() - minimum


def _q5_k(blocks: Tensor) -> Tensor:
    """As q4_k, with a fifth bit: bit j of byte i of 32 bytes belongs to value i of sub-block j."""
    scale, minimum = _scales(blocks)
    low = _nibbles(blocks[:, 48:], 32).view(-1, 8, 32)
    high = (blocks[:, 16:48].unsqueeze(1) >> torch.arange(8, dtype=torch.uint8, device=blocks.device).view(1, 8, 1)) & 1
    return scale * (low | (high << 4)).float() - minimum


def _q6_k(blocks: Tensor) -> Tensor:
    """128 bytes of low halves, 64 of upper pairs of bits, 16 int8 scales, d float16: d * scale * (q - 32)."""
    low = _nibbles(blocks[:, :128], 64).view(-1, 8, 32)
    shifts = torch.tensor((0, 2, 4, 6), dtype=torch.uint8, device=blocks.device).view(1, 1, 4, 1)
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).view(-1, 8, 32)
    scale = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8).float()
    q = (low | (high << 4)).float() - 32
    return scale.unsqueeze(2) * q.view(-1, 16, 16)


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block: (blocks, 1) float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, run: int) -> Tensor:
    """Low halves of each run of bytes, then its high halves: (blocks, runs, 2, run) uint8."""
    shifts = torch.tensor((0, 4), dtype=torch.uint8, device=packed.device).view(1, 1, 2, 1)
    return (packed.reshape(packed.shape[0], -1, 1, run) >> shifts) & 15


def _scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """d * scale and dmin * minimum of the 8 sub-blocks: (blocks, 8, 1) float32 each.

    12 bytes hold 16 numbers of 6 bits: scales 0-3, minima 0-3 with the upper bits of numbers 4-7 above them, then the
    lower halves of scales and minima 4-7.
    """
    first, second, rest = blocks[:, 4:16].reshape(-1, 3, 4).unbind(1)
    scale = torch.cat((first & 63, (rest & 15) | ((first >> 2) & 48)), dim=1)
    minimum = torch.cat((second & 63, (rest >> 4) | ((second >> 2) & 48)), dim=1)
    return (_half(blocks, 0) * scale.float()).unsqueeze(2), (_half(blocks, 2) * minimum.float()).unsqueeze(2)


_BLOCKS: Final[dict[str, tuple[int, Callable[[Tensor], Tensor]]]] = {
    "Q4_0": (18, _q4_0),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
