"""Rows of the paged cache on the card, in each of their types: kernels.kv_quant for kernels that write or read it."""

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels import kv_int4, kv_quant
from kvasir_runtime.kernels.gpu.options import options

# In the type of what is stored; floats of 8 bits; from INT8 on integers with their scale behind them, of 4 bits turned.
PLAIN, FLOAT8, INT8, INT4 = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
_KINDS: Final[dict[torch.dtype, int]] = {
    kv_quant.FLOAT8: FLOAT8.value,
    torch.int8: INT8.value,
    kv_quant.INT4: INT4.value,
}
_ELEMENTS: Final = 2048


def kind(cache: Tensor) -> int:
    """Which of the four."""
    return _KINDS.get(cache.dtype, 0)


def scales(cache: Tensor) -> Tensor:
    """The same memory as float32, where rows have scales; else the cache itself, which nothing reads as that.

    Raises ValueError for rows that are not whole words of 4 bytes.
    """
    if not kv_quant.scale_bytes(cache.dtype):
        return cache
    if cache.shape[-1] % 4:
        raise ValueError(f"rows of a cache with scales need a multiple of 4 bytes, these have {cache.shape[-1]}")
    return cache.view(torch.float32)


def turned(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Queries for rows of INT4, and sums of these: (tokens, heads, head_dim) as `kv_int4.hadamard` times `back`."""
    tokens, heads, head = x.shape
    padded, out = triton.next_power_of_2(head), torch.empty(x.shape, dtype=dtype, device=x.device)
    block = min(triton.next_power_of_2(heads), max(1, _ELEMENTS // padded))
    _turn[(tokens, -(-heads // block))](
        x, out, *x.stride()[:2],
        HEADS=heads, HEAD=head, BLOCK=block, PADDED=padded, LEVELS=kv_int4.levels(head), FACTOR=kv_int4.back(head),
        **options(block * padded),
    )  # fmt: skip
    return out


@triton.jit
def _turn(
    x, out, stride, head_stride,
    HEADS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr, PADDED: tl.constexpr, LEVELS: tl.constexpr,
    FACTOR: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, dims = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PADDED)
    mask = (head < HEADS)[:, None] & (dims < HEAD)[None, :]
    rows = tl.load(x + token * stride + (head * head_stride)[:, None] + dims[None, :], mask=mask, other=0.0)
    rows = hadamard(rows.to(tl.float32), BLOCK, PADDED, LEVELS) * FACTOR
    target = out + token * (HEADS * HEAD) + (head * HEAD)[:, None] + dims[None, :]
    tl.store(target, rows.to(out.dtype.element_ty), mask=mask)


@triton.jit
def hadamard(x, ROWS: tl.constexpr, DIM: tl.constexpr, LEVELS: tl.constexpr):
    """(ROWS, DIM) float32 times Hadamard's matrix, by runs of 2^LEVELS; sums in the order of the reference."""
    for level in tl.static_range(LEVELS):
        pairs = tl.permute(tl.reshape(x, (ROWS * DIM >> (level + 1), 2, 1 << level)), (0, 2, 1))
        left, right = tl.split(pairs)
        x = tl.reshape(tl.permute(tl.join(left + right, left - right), (0, 2, 1)), (ROWS, DIM))
    return x


@triton.jit
def packed(x, most, ROWS: tl.constexpr, DIM: tl.constexpr):
    """(ROWS, DIM) turned rows as (ROWS, DIM / 2) bytes of two numbers. most: of each row."""
    inverse = tl.where(most > 0, 7.5 / tl.where(most > 0, most, 1.0), 0.0)
    # As in `rounded`.
    codes = ((x * inverse[:, None] + 7.5) + 12582912.0) - 12582912.0
    low, high = tl.split(tl.reshape(codes.to(tl.int32), (ROWS, DIM // 2, 2)))
    return ((low & 15) | ((high & 15) << 4)).to(tl.uint8)


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
