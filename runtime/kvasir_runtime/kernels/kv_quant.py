"""What a row of the paged cache, one head of one token, looks like in each type that a cache may have.

    query's own type   head_dim numbers as they are
    int8               head_dim numbers and their scale behind them, see kernels.kv_int8
    uint8 (INT4)       head_dim numbers of 4 bits, turned, and their scale behind them, see kernels.kv_int4
    float8_e4m3fn      head_dim numbers, rounded to nearest with ties to even, those beyond 448 taken as 448

Used by the references of the operations that write and read a cache, and where one is allocated. The numbers of 8-bit
floats have a scale of their own each, their exponent, so they need none beside them: rows stay powers of two, which
cards load in whole words of 16 bytes; int8 is the finer one, with 1/254 of the largest number of the row as its error.
"""

from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels import kv_int4, kv_int8

FLOAT8: Final = torch.float8_e4m3fn
INT4: Final = torch.uint8
"""Bytes, each of which holds two numbers."""
LARGEST_FLOAT8: Final = 448.0


def width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of a row."""
    return (head_dim // 2 if dtype == INT4 else head_dim) + scale_bytes(dtype)


def number_bytes(dtype: torch.dtype) -> float:
    """Bytes of one number of a row."""
    return 0.5 if dtype == INT4 else dtype.itemsize


def scale_bytes(dtype: torch.dtype) -> int:
    """Bytes of a row beside its numbers."""
    return kv_int8.SCALE_BYTES if dtype in (torch.int8, INT4) else 0


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x: (..., head_dim) as rows of a cache of dtype."""
    if dtype == torch.int8:
        return kv_int8.quantize(x)
    if dtype == INT4:
        return kv_int4.quantize(x)
    if dtype == FLOAT8:
        return x.float().clamp(-LARGEST_FLOAT8, LARGEST_FLOAT8).to(FLOAT8)
    return x.to(dtype)


def numbers(rows: Tensor) -> Tensor:
    """rows: (..., width); (..., head_dim) float32."""
    if rows.dtype == INT4:
        return kv_int4.dequantize(rows)
    return kv_int8.dequantize(rows) if rows.dtype == torch.int8 else rows.float()
