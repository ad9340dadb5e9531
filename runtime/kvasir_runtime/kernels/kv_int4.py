"""Rows of a cache in 4 bits: two numbers in a byte and, behind them in the same row, the scale that they are times.

    turned = hadamard(x) * down;  scale = max(|turned[i]| for i) / 15
    code[i] = round(turned[i] / (2 * scale) + 7.5), ties to even, in 0 .. 15, for the number (2 * code[i] - 15) * scale
    row[j] = code[2 * j] + 16 * code[2 * j + 1];  row[dim / 2 : dim / 2 + 4] = scale as float32, little-endian

Rows are turned before they are rounded, so that a few large numbers of a head do not make the scale of all others: by
Hadamard's matrix for each run of 2^levels(dim) numbers, whose rows are orthogonal. Scores stay what they are where a
query is turned alike, and sums of values are turned back once, by the same matrix. `down` and `back` are powers of two
with down * back = 1 / run, so that only sums are rounded. Number by number the error is at most scale, in turned rows.
Sources: Ashkboos et al. 2024 (QuaRot). Called by the kernels that write and read a cache.
"""

import torch
from torch import Tensor

from kvasir_runtime.kernels.kv_int8 import SCALE_BYTES


def levels(dim: int) -> int:
    """Of a run, the numbers that are turned together: their logarithm, as the largest power of two that divides dim."""
    return (dim & -dim).bit_length() - 1


def down(dim: int) -> float:
    """What turned rows of a cache are times."""
    return 2.0 ** -((levels(dim) + 1) // 2)


def back(dim: int) -> float:
    """What turned queries, and sums that are turned back, are times."""
    return 2.0 ** -(levels(dim) // 2)


def hadamard(x: Tensor) -> Tensor:
    """x: (..., dim) float32 times Hadamard's matrix, run by run, in the order of sums that every kernel has."""
    for level in range(levels(x.shape[-1])):
        left, right = x.unflatten(-1, (-1, 2, 1 << level)).unbind(-2)
        x = torch.stack((left + right, left - right), dim=-2).flatten(-3)
    return x


def quantize(x: Tensor) -> Tensor:
    """x: (..., dim) floating, dim even; (..., dim / 2 + SCALE_BYTES) uint8."""
    turned = hadamard(x.float()) * down(x.shape[-1])
    most = turned.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(most > 0, 7.5 / most, 0.0)
    codes = (turned * inverse + 7.5).round().nan_to_num().to(torch.uint8)
    # A copy in any case: of no row with one head the last stride may be 0.
    scale = (most / 15).clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return torch.cat((codes[..., ::2] | codes[..., 1::2] << 4, scale), dim=-1)


def dequantize(rows: Tensor) -> Tensor:
    """rows: (..., dim / 2 + SCALE_BYTES) uint8; (..., dim) float32, turned back."""
    codes = rows[..., :-SCALE_BYTES]
    numbers = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2).float() * 2 - 15
    return hadamard(numbers * scales(rows)) * back(numbers.shape[-1])


def scales(rows: Tensor) -> Tensor:
    """rows: as of `dequantize`; (..., 1) float32."""
    # A copy in any case: a single row's scale may begin between words.
    return rows[..., -SCALE_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
