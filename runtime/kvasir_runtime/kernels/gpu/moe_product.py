"""The grouped product of experts: each program has one expert, some of its pairs (see `moe_align`) and some outputs.

Weights of few bits become numbers of x's type in registers: e4m3 with a scale for each row exactly, its scale behind
the sum; others times the scale of their group, rounded once, which changes none of e2m1, whose unit of a row is behind
the sum too, with the largest power of two of the row. Else they stay as `kernels.quantized` holds them.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from kvasir_runtime.kernels.gpu.act_and_mul import RELU2, activated
from kvasir_runtime.kernels.gpu.dequant import e2m1, e4m3, nibbles, of_rows, offset, short_scale
from kvasir_runtime.kernels.gpu.moe_align import Lists
from kvasir_runtime.kernels.gpu.moe_tiles import MoeTiles
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import NVFP4_GROUP, QuantFormat, QuantizedWeight

_PLAIN: Final = 0
_INT8, _INT4, _E4M3, _E4M3_ROWS, _E2M1 = 8, 4, 2, 1, 3
_RELU2 = constexpr(RELU2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """One matrix of all experts.

    values: (experts, rows, columns), bytes where kind is of few bits, two numbers in one for _INT4 and _E2M1
    scales, minima: (experts, rows, groups), of _E2M1 bytes; columns: of the matrix; group: columns that share a scale
    units: (experts * rows,) float32, of whole rows. bias: (experts * rows,)
    """

    kind: int
    values: Tensor
    bias: Tensor | None
    columns: int
    group: int
    scales: Tensor | None = None
    minima: Tensor | None = None
    units: Tensor | None = None

    @property
    def short(self) -> bool:
        """Whether its numbers have few bits."""
        return self.kind != _PLAIN


def bank(weight: Weight, bias: Tensor | None, experts: int) -> Bank:
    """Of experts that lie one below the other; their memory is not copied, but for scales of MXFP4."""
    columns = weight.shape[1]
    if not isinstance(weight, QuantizedWeight):
        return Bank(kind=_PLAIN, values=weight.view(experts, -1, columns), bias=bias, columns=columns, group=columns)
    kind, scales, units = _kind(weight.format), weight.scales, None
    if kind == _E2M1:
        assert weight.units is not None
        scales, units = scales.view(torch.uint8), 2 * weight.units.view(-1)  # which are of halves
        if weight.format.group != NVFP4_GROUP:
            scales, units = of_rows(scales, units)
    elif kind == _E4M3_ROWS:
        units = scales.view(-1).float()
    return Bank(
        kind=kind,
        values=weight.values.view(torch.int8).view(experts, weight.shape[0] // experts, -1),
        scales=_by_expert(scales, experts),
        minima=_by_expert(weight.minima, experts),
        units=units,
        bias=bias,
        columns=columns,
        group=weight.format.group or columns,
    )


def _kind(format_: QuantFormat) -> int:
    if not format_.floating:
        return format_.bits
    return _E2M1 if format_.e2m1 else _E4M3_ROWS if format_.by_row else _E4M3


def _by_expert(tensor: Tensor | None, experts: int) -> Tensor | None:
    return None if tensor is None else tensor.view(experts, tensor.shape[0] // experts, -1)


def product(x: Tensor, weight: Bank, lists: Lists, out: Tensor, chosen: MoeTiles, *, rows_of: int, gate: int) -> None:
    """One grouped product: out[pair] of row pair // rows_of of x, behind a gate or times the pair's share.

    gate: of act_and_mul.KINDS, or RELU2, an activation without one; 0 without either.

    x: (rows, inputs); weight: of outputs, or twice as many if gated, by inputs; out: (pairs, outputs)
    """
    outputs, inputs = out.shape[1], weight.columns
    grid = (lists.num_blocks * -(-outputs // chosen.block_n),)
    _product[grid](
        x, weight.values, weight.scales, weight.minima, weight.units, weight.bias, lists.shares, out, lists.pairs,
        lists.experts, lists.rows, lists.num_blocks,
        OUTPUTS=outputs, INPUTS=inputs, ROWS_OF=rows_of, GATE=gate, TOGETHER=chosen.together,
        KIND=weight.kind, GROUP=weight.group, SCALED=weight.units is not None, BIASED=weight.bias is not None,
        OFFSET=offset(x.dtype),
        COMPILED=isinstance(_product, triton.JITFunction),
        BLOCK_M=lists.block_m, BLOCK_N=chosen.block_n, BLOCK_K=chosen.block_k, EVEN=inputs % chosen.block_k == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=chosen.num_warps, num_stages=chosen.num_stages, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_blocks"])
def _product(
    x, values, scales, minima, units, bias, shares, out, pairs, experts, rows, num_blocks,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS_OF: tl.constexpr, GATE: tl.constexpr, TOGETHER: tl.constexpr,
    KIND: tl.constexpr, GROUP: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr, OFFSET: tl.constexpr,
    COMPILED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    columns: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    program = tl.program_id(0)
    begin = program // (TOGETHER * columns) * TOGETHER
    side = tl.minimum(num_blocks - begin, TOGETHER)
    block, column = begin + program % (TOGETHER * columns) % side, program % (TOGETHER * columns) // side
    count = tl.load(rows + block)
    if count > 0:
        lane, k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
        here = lane < count
        pair = tl.load(pairs + block * BLOCK_M + lane, mask=here, other=0)
        left = x + (pair // ROWS_OF).to(tl.int64)[:, None] * INPUTS + k[None, :]
        n = column * BLOCK_N + tl.arange(0, BLOCK_N)
        wanted = n < OUTPUTS
        gated: tl.constexpr = GATE > 0 and GATE != _RELU2
        height: tl.constexpr = OUTPUTS * (2 if gated else 1)
        row = tl.load(experts + block).to(tl.int64) * height + n
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        other = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, INPUTS, BLOCK_K):
            valid = k < BLOCK_K if EVEN else k < INPUTS - start
            a = tl.load(left + start, mask=here[:, None] & valid[None, :], other=0.0)
            b = _tile(
                values, scales, minima, row, wanted, start, x.dtype.element_ty,
                INPUTS, KIND, GROUP, OFFSET, COMPILED, BLOCK_N, BLOCK_K, EVEN,
            )  # fmt: skip
            total = tl.dot(a, b, total, input_precision=PRECISION)
            if gated:
                b = _tile(
                    values, scales, minima, row + OUTPUTS, wanted, start, x.dtype.element_ty,
                    INPUTS, KIND, GROUP, OFFSET, COMPILED, BLOCK_N, BLOCK_K, EVEN,
                )  # fmt: skip
                other = tl.dot(a, b, other, input_precision=PRECISION)
        if SCALED:
            total *= tl.load(units + row, mask=wanted, other=0.0)[None, :]
            if gated:
                other *= tl.load(units + row + OUTPUTS, mask=wanted, other=0.0)[None, :]
        if BIASED:
            total += tl.load(bias + row, mask=wanted, other=0.0).to(tl.float32)[None, :]
            if gated:
                other += tl.load(bias + row + OUTPUTS, mask=wanted, other=0.0).to(tl.float32)[None, :]
        if gated:
            total = activated(total, other, GATE)
        elif GATE == _RELU2:
            total = tl.maximum(total, 0.0) * tl.maximum(total, 0.0)
        else:
            total *= tl.load(shares + pair, mask=here, other=0.0)[:, None]
        target = out + pair.to(tl.int64)[:, None] * OUTPUTS + n[None, :]
        tl.store(target, total.to(out.dtype.element_ty), mask=here[:, None] & wanted[None, :])


@triton.jit
def _tile(
    values, scales, minima, row, wanted, start, dtype: tl.constexpr,
    INPUTS: tl.constexpr, KIND: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, COMPILED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Columns from start on of the weight's rows, as (columns, rows) of dtype."""
    each_byte: tl.constexpr = 2 if KIND == 4 or KIND == 3 else 1
    width: tl.constexpr = BLOCK_K // each_byte
    stride: tl.constexpr = INPUTS // each_byte
    at = start // each_byte + tl.arange(0, width)
    mask = wanted[:, None] if EVEN else wanted[:, None] & (at < stride)[None, :]
    tile = tl.load(values + row[:, None] * stride + at[None, :], mask=mask, other=0)
    if KIND == 1:
        tile = e4m3(tile, dtype, COMPILED)
    elif KIND > 0:
        groups: tl.constexpr = (INPUTS + GROUP - 1) // GROUP
        each: tl.constexpr = min(BLOCK_K, GROUP)
        group = start // GROUP + tl.arange(0, BLOCK_K // each)
        place = row[:, None] * groups + group[None, :]
        known = wanted[:, None] & (group < groups)[None, :]
        if KIND == 3:
            scale = short_scale(tl.load(scales + place, mask=known, other=0).to(tl.int32), GROUP == 16)[:, :, None]
        else:
            scale = tl.load(scales + place, mask=known, other=0.0).to(tl.float32)[:, :, None]
        if KIND == 3:
            low, high = e2m1(tile, dtype, False, COMPILED), e2m1(tile, dtype, True, COMPILED)
            exact: tl.constexpr = tl.float32 if dtype == tl.float16 else dtype  # float16 lacks the scales' exponents
            wide = tl.interleave(low, high).to(exact).reshape(BLOCK_N, BLOCK_K // each, each) * scale.to(exact)
        elif KIND == 4:
            low, high = nibbles(tile, dtype, False, COMPILED), nibbles(tile, dtype, True, COMPILED)
            least = tl.load(minima + place, mask=known, other=0.0).to(tl.float32)[:, :, None]
            wide = tl.interleave(low, high).to(tl.float32).reshape(BLOCK_N, BLOCK_K // each, each)
            wide = (wide - OFFSET) * scale - least
        elif KIND == 8:
            wide = tile.to(tl.float32).reshape(BLOCK_N, BLOCK_K // each, each) * scale
        else:
            wide = e4m3(tile, dtype, COMPILED).to(tl.float32).reshape(BLOCK_N, BLOCK_K // each, each) * scale
        tile = wide.reshape(BLOCK_N, BLOCK_K).to(dtype)
    return tl.trans(tile)
