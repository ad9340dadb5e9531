"""Rows of the paged cache on the card, in each of their types: kernels.kv_quant for kernels that write or read it."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels import kv_quant

# In the type of what is stored; integers with their scale behind them; floats of 8 bits.
PLAIN, INT8, FLOAT8 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_KINDS: Final[dict[torch.dtype, int]] = {torch.int8: INT8.value, kv_quant.FLOAT8: FLOAT8.value}


def kind(cache: Tensor) -> int:
    """Which of the three."""
    return _KINDS.get(cache.dtype, 0)


def scales(cache: Tensor) -> Tensor:
    """The same memory as float32, where scales are INT8's; else the cache itself, which nothing reads as that.

    Raises ValueError for rows that are not whole words of 4 bytes.
    """
    if cache.dtype != torch.int8:
        return cache
    if cache.shape[-1] % 4:
        raise ValueError(f"an int8 cache needs heads of a multiple of 4 numbers, these have {cache.shape[-1] - 4}")
    return cache.view(torch.float32)


@triton.jit
def most(x):
    """Largest size in each row: (rows, dims) to (rows,)."""
    return tl.max(tl.abs(x.to(tl.float32)), 1)


@triton.jit
def rounded(x, most, KIND: tl.constexpr, TYPE: tl.constexpr):
    """Numbers of rows as the cache holds them. most: of the whole row, read by INT8 alone."""
    if KIND == INT8:
        inverse = 127.0 / tl.where(most > 0, most, 127.0)
        # Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
        x = (x.to(tl.float32) * inverse[:, None] + 12582912.0) - 12582912.0
    if KIND == FLOAT8:
        x = _rounded_float8(tl.minimum(tl.maximum(x.to(tl.float32), -448.0), 448.0))
    return x.to(TYPE)


@triton.jit
def _rounded_float8(x):
    """float32 with the three bits behind the first that floats of 8 bits have, ties to even.

    The card would round as well, but the interpreter drops the carry where a number rounds up to the next power of two.
    """
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + (0x7FFFF + ((bits >> 20) & 1))) & -0x100000
    # Below 2^-6 all have the exponent of 2^-6, so the step is 2^-9: that of float32 near 1.5 * 2^14.
    small = (x + 24576.0) - 24576.0
    return tl.where(tl.abs(x) < 0.015625, small, bits.to(tl.float32, bitcast=True))
