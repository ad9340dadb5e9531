"""Rows of a cache in 8 bits: numbers of -127 .. 127 and, behind them in the same row, the scale that they are times.

    scale = max(|x[i]| for i) / 127
    row[i] = round(x[i] / scale), ties to even;  row[dim : dim + 4] = scale as float32, little-endian

One scale per token and head, beside its numbers, so that a block is one piece of memory whatever is copied or shared.
Called by the kernels that write and read a cache; the error of one number is at most scale / 2.
"""

from typing import Final

import torch
from torch import Tensor

SCALE_BYTES: Final = 4


def quantize(x: Tensor) -> Tensor:
    """x: (..., dim) floating; (..., dim + SCALE_BYTES) int8."""
    wide = x.float()
    most = wide.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(most > 0, 127 / most, 0.0)
    # A copy in any case: of no row with one head the last stride may be 0.
    scale = (most / 127).clone(memory_format=torch.contiguous_format).view(torch.int8)
    return torch.cat(((wide * inverse).round().to(torch.int8), scale), dim=-1)


def dequantize(rows: Tensor) -> Tensor:
    """rows: (..., dim + SCALE_BYTES) int8; (..., dim) float32."""
    numbers, scale = rows[..., :-SCALE_BYTES], rows[..., -SCALE_BYTES:]
    return numbers.float() * scale.contiguous().view(torch.float32)
