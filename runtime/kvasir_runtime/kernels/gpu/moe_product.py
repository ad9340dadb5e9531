"""The grouped product of experts: each program has one expert, some of its pairs (see `moe_align`) and some outputs.

Weights of few bits become numbers of x's type in registers: e4m3 with a scale for each row exactly, its scale behind
the sum; others times the scale of their group, rounded once. They stay as `kernels.quantized` holds them.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.act_and_mul import activated
from kvasir_runtime.kernels.gpu.dequant import e4m3, nibbles, offset
from kvasir_runtime.kernels.gpu.moe_align import Lists
from kvasir_runtime.kernels.gpu.moe_tiles import MoeTiles
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import QuantizedWeight

_PLAIN: Final = 0
_INT8, _INT4, _E4M3, _E4M3_ROWS = 8, 4, 2, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bank:
    """One matrix of all experts.

    values: (experts, rows, columns), bytes where kind is of few bits, two numbers in one for _INT4
    scales, minima: (experts, rows, groups); columns: of the matrix; group: columns that share a scale
    bias: (experts * rows,)
    """

    kind: int
    values: Tensor
    scales: Tensor | None
    minima: Tensor | None
    bias: Tensor | None
    columns: int
    group: int

    @property
    def short(self) -> bool:
        """Whether its numbers have few bits."""
        return self.kind != _PLAIN


def bank(weight: Weight, bias: Tensor | None, experts: int) -> Bank:
    """Of experts that lie one below the other; their memory is not copied."""
    if not isinstance(weight, QuantizedWeight):
        values = weight.view(experts, -1, weight.shape[1])
        columns = weight.shape[1]
        return Bank(kind=_PLAIN, values=values, scales=None, minima=None, bias=bias, columns=columns, group=columns)
    columns, format_ = weight.shape[1], weight.format
    scales, minima = (_by_expert(tensor, experts) for tensor in (weight.scales, weight.minima))
    kind = format_.bits if not format_.floating else _E4M3_ROWS if format_.by_row else _E4M3
    values = weight.values.view(torch.int8).view(experts, weight.shape[0] // experts, -1)
    group = format_.group or columns
    return Bank(kind=kind, values=values, scales=scales, minima=minima, bias=bias, columns=columns, group=group)


def _by_expert(tensor: Tensor | None, experts: int) -> Tensor | None:
    return None if tensor is None else tensor.view(experts, tensor.shape[0] // experts, -1)


def product(x: Tensor, weight: Bank, lists: Lists, out: Tensor, chosen: MoeTiles, *, rows_of: int, gate: int) -> None:
    """One grouped product: out[pair] of row pair // rows_of of x, behind a gate or times the pair's share.

    gate: of act_and_mul.KINDS, 0 without.

    x: (rows, inputs); weight: of outputs, or twice as many if gated, by inputs; out: (pairs, outputs)
    """
    outputs, inputs = out.shape[1], weight.columns
    grid = (lists.num_blocks * -(-outputs // chosen.block_n),)
    _product[grid](
        x, weight.values, weight.scales, weight.minima, weight.bias, lists.shares, out, lists.pairs, lists.experts,
        lists.rows,
        lists.num_blocks, OUTPUTS=outputs, INPUTS=inputs, ROWS_OF=rows_of, GATE=gate, TOGETHER=chosen.together,
        KIND=weight.kind, GROUP=weight.group, BIASED=weight.bias is not None, OFFSET=offset(x.dtype),
        COMPILED=isinstance(_product, triton.JITFunction),
        BLOCK_M=lists.block_m, BLOCK_N=chosen.block_n, BLOCK_K=chosen.block_k, EVEN=inputs % chosen.block_k == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=chosen.num_warps, num_stages=chosen.num_stages, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_blocks"])
def _product(
    x, values, scales, minima, bias, shares, out, pairs, experts, rows, num_blocks,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS_OF: tl.constexpr, GATE: tl.constexpr, TOGETHER: tl.constexpr,
    KIND: tl.constexpr, GROUP: tl.constexpr, BIASED: tl.constexpr, OFFSET: tl.constexpr, COMPILED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
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
        height: tl.constexpr = OUTPUTS * (2 if GATE > 0 else 1)
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
            if GATE > 0:
                b = _tile(
                    values, scales, minima, row + OUTPUTS, wanted, start, x.dtype.element_ty,
                    INPUTS, KIND, GROUP, OFFSET, COMPILED, BLOCK_N, BLOCK_K, EVEN,
                )  # fmt: skip
                other = tl.dot(a, b, other, input_precision=PRECISION)
        if KIND == 1:
            total *= tl.load(scales + row, mask=wanted, other=0.0)[None, :]
            if GATE > 0:
                other *= tl.load(scales + row + OUTPUTS, mask=wanted, other=0.0)[None, :]
        if BIASED:
            total += tl.load(bias + row, mask=wanted, other=0.0).to(tl.float32)[None, :]
            if GATE > 0:
                other += tl.load(bias + row + OUTPUTS, mask=wanted, other=0.0).to(tl.float32)[None, :]
        if GATE > 0:
            total = activated(total, other, GATE)
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
    width: tl.constexpr = BLOCK_K // 2 if KIND == 4 else BLOCK_K
    stride: tl.constexpr = INPUTS // 2 if KIND == 4 else INPUTS
    at = (start // 2 if KIND == 4 else start) + tl.arange(0, width)
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
        scale = tl.load(scales + place, mask=known, other=0.0).to(tl.float32)[:, :, None]
        if KIND == 4:
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
