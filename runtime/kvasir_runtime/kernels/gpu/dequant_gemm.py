"""Products of a few hundred tokens with a group-scaled weight: each program unpacks the tiles that it multiplies.

To unpack a weight before the vendor's library multiplies it, 2 bytes of each number are written and read again, in
every step. Here numbers become x's type in registers, times the scale of their group relative to the row's unit,
rounded once, which changes none of e2m1; sums run over all columns on the tensor cores, and units are behind them. Each
tile is unpacked once for each block of tokens: for thousands of them the library, the quicker multiplier, pays again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.dequant import e2m1, e4m3, nibbles, offset, short_scale
from kvasir_runtime.kernels.gpu.tuning_table import DequantTile


def product(
    x: Tensor,
    values: Tensor,
    words: Tensor,
    units: Tensor,
    bias: Tensor | None,
    tile: DequantTile,
    sizes: dict[str, int],
) -> Tensor:
    """(tokens, columns) -> (tokens, rows), without a gate.

    values, words, units: as of `group_scaled_gemm`, whose constants of a kind sizes are.
    """
    (steps, rows, _), columns = values.shape, x.shape[1]
    out = x.new_empty((x.shape[0], rows))
    stages = tile.stages(sizes["COLUMNS"] * x.element_size(), sizes["BYTES"])
    _multiply[(-(-rows // tile.rows) * -(-x.shape[0] // tile.tokens),)](
        x, values, words, units, bias, out, x.shape[0], rows, columns, steps, steps * rows, x.stride(0),
        **sizes, OFFSET=offset(x.dtype), BIASED=bias is not None,
        MASKED=columns % sizes["COLUMNS"] != 0, COMPILED=isinstance(_multiply, triton.JITFunction),
        BLOCK_M=tile.tokens, BLOCK_N=tile.rows, STAGES=stages,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps, num_stages=stages, enable_fp_fusion=True,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["tokens", "steps"])
def _multiply(
    x, values, words, units, bias, out, tokens, rows, columns, steps, plane, x_stride,
    KIND: tl.constexpr, COLUMNS: tl.constexpr, BYTES: tl.constexpr, WIDTH: tl.constexpr, OFFSET: tl.constexpr,
    BIASED: tl.constexpr, MASKED: tl.constexpr, COMPILED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x.dtype.element_ty
    blocks = tl.cdiv(tokens, BLOCK_M)  # side by side, so that they share the reading of a tile
    n = tl.program_id(0) // blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, WIDTH)
    inside = n < rows
    here = (m < tokens)[None, :]
    beside = here
    token = x + m.to(tl.int64)[None, :] * x_stride + k[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    place = (tl.program_id(0) * 0).to(tl.int64)
    for step in tl.range(0, steps, num_stages=STAGES):
        at = step * COLUMNS
        if MASKED:
            here = (m < tokens)[None, :] & (at + k < columns)[:, None]
            beside = (m < tokens)[None, :] & (at + WIDTH + k < columns)[:, None]
        left = tl.load(token + at, mask=here, other=0.0)
        source = values + place * BYTES + n[:, None] * BYTES + k[None, :]
        tile = tl.load(source, mask=inside[:, None], other=0)
        word = tl.load(words + place + n, mask=inside, other=0)
        least = word  # of int4 alone
        if KIND == 4:
            least = tl.load(words + plane + place + n, mask=inside, other=0)
        first = _scaled(tile, word, least, dtype, KIND, OFFSET, False, COMPILED)
        acc = tl.dot(first, left, acc, input_precision=PRECISION)
        if KIND != 1:
            right = tl.load(token + at + WIDTH, mask=beside, other=0.0)
            if KIND == 8:
                tile = tl.load(source + WIDTH, mask=inside[:, None], other=0)
            second = _scaled(tile, word, least, dtype, KIND, OFFSET, True, COMPILED)
            acc = tl.dot(second, right, acc, input_precision=PRECISION)
        place += rows
    acc *= tl.load(units + n, mask=inside, other=0.0)[:, None]
    if BIASED:
        acc += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    target = out + m.to(tl.int64)[None, :] * rows + n[:, None]
    tl.store(target, acc.to(dtype), mask=inside[:, None] & (m < tokens)[None, :])


@triton.jit
def _scaled(
    tile, word, least, dtype: tl.constexpr,
    KIND: tl.constexpr, OFFSET: tl.constexpr, HIGH: tl.constexpr, COMPILED: tl.constexpr,
):  # fmt: skip
    """The first or, HIGH, the second half of a step's numbers: (rows, width) of dtype. word, least: as the file has."""
    if KIND == 1:
        result = e4m3(tile, dtype, COMPILED).to(tl.float32) * word[:, None]
    elif KIND == 32 or KIND == 16:
        scale = short_scale((word.to(tl.int32) >> (8 if HIGH else 0)) & 255, KIND == 16)
        result = e2m1(tile, dtype, HIGH, COMPILED).to(tl.float32) * scale[:, None]
    else:
        scale = _half(word, HIGH)
        if KIND == 8:
            result = tile.to(dtype).to(tl.float32) * scale[:, None]
        else:
            lower = OFFSET * scale + _half(least, HIGH)
            result = nibbles(tile, dtype, HIGH, COMPILED).to(tl.float32) * scale[:, None] - lower[:, None]
    return result.to(dtype)


@triton.jit
def _half(word, HIGH: tl.constexpr):
    """The float16 in a half of an int32, as float32."""
    return (word >> (16 if HIGH else 0)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
