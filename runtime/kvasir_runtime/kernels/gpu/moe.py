"""Experts as two grouped products: each program has one expert, some of its pairs (see `moe_align`) and some outputs.

The first gathers rows of x and has the gate behind it, computed in float32 and rounded once; the second multiplies by
the shares and scatters to a row of each pair, which a third kernel sums for each token, experts upwards, so that a
result is the same in every run. Nothing is read by the host: grids follow from the numbers of tokens and experts, and
programs without work end at once. Tokens that share an expert share the reading of its weights.
Source: the grouping of Gale et al. 2022 (MegaBlocks), by lists instead of a sparse matrix.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels import gated, linear, moe
from kvasir_runtime.kernels.gpu import moe_align, moe_tiles, silu_mul
from kvasir_runtime.kernels.gpu.moe_align import Lists
from kvasir_runtime.kernels.gpu.moe_tiles import Tiles
from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.linear import Linear, Weight

_SUMMED = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The layer that `build` builds. gate_up: (experts, 2 * inner, hidden), down: (experts, hidden, inner)."""

    router: Linear
    gate_up: Tensor
    down: Tensor
    top_k: int
    renormalised: bool

    def __call__(self, x: Tensor) -> Tensor:
        """kernels.moe."""
        tokens, hidden = x.shape
        if not tokens:
            return torch.empty_like(x)
        experts, inner = self.down.shape[0], self.down.shape[2]
        pairs, card = tokens * self.top_k, _card(x.device)
        up = moe_tiles.tiles(card, x.element_size(), pairs, experts, inner, gated=True)
        down = moe_tiles.tiles(card, x.element_size(), pairs, experts, hidden, gated=False)
        lists = moe_align.align(self.router(x), self.top_k, self.renormalised, up.block_m)
        between = x.new_empty((pairs, inner))
        product(x, self.gate_up, lists, between, up, rows_of=self.top_k, gated=True)
        given = x.new_empty((pairs, hidden))
        product(between, self.down, lists, given, down, rows_of=1, gated=False)
        out = torch.empty_like(x)
        block = min(_SUMMED, triton.next_power_of_2(hidden))
        _sum[(tokens, -(-hidden // block))](given, out, hidden, TOP_K=self.top_k, BLOCK=block, **options(block))
        return out


def build(router: Tensor, gate_up: Weight, down: Weight, top_k: int, renormalised: bool) -> Linear:
    """kernels.moe."""
    experts, hidden = router.shape
    if not isinstance(gate_up, Tensor) or not isinstance(down, Tensor):
        by_one = moe.grouped(linear.unpacked, gated.composed(linear.unpacked, silu_mul.launch))
        return by_one(router, gate_up, down, top_k, renormalised)
    return Experts(
        router=linear.unpacked(router, None),
        gate_up=gate_up.view(experts, -1, hidden),
        down=down.view(experts, hidden, -1),
        top_k=top_k,
        renormalised=renormalised,
    )


def product(x: Tensor, weight: Tensor, lists: Lists, out: Tensor, chosen: Tiles, *, rows_of: int, gated: bool) -> None:
    """One grouped product: out[pair] of row pair // rows_of of x, silu_mul'ed (gated) or times the pair's share.

    x: (rows, inputs); weight: (experts, outputs, inputs), outputs twice as many if gated; out: (pairs, outputs)
    """
    outputs, inputs = out.shape[1], x.shape[1]
    grid = (lists.num_blocks * -(-outputs // chosen.block_n),)
    _product[grid](
        x, weight, lists.shares, out, lists.pairs, lists.experts, lists.rows, lists.num_blocks,
        OUTPUTS=outputs, INPUTS=inputs, ROWS_OF=rows_of, GATED=gated, TOGETHER=chosen.together,
        BLOCK_M=lists.block_m, BLOCK_N=chosen.block_n, BLOCK_K=chosen.block_k, EVEN=inputs % chosen.block_k == 0,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=chosen.num_warps, num_stages=chosen.num_stages, enable_fp_fusion=True,
    )  # fmt: skip


@cache
def _card(device: torch.device) -> str:
    """The card's name in the table of launch parameters."""
    if device.type != "cuda":
        return "sm_90"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@triton.jit(do_not_specialize=["num_blocks"])
def _product(
    x, weight, shares, out, pairs, experts, rows, num_blocks,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS_OF: tl.constexpr, GATED: tl.constexpr, TOGETHER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    columns: tl.constexpr = (OUTPUTS + BLOCK_N - 1) // BLOCK_N
    program = tl.program_id(0)
    begin = program // (TOGETHER * columns) * TOGETHER
    side = tl.minimum(num_blocks - begin, TOGETHER)
    block, column = begin + program % (TOGETHER * columns) % side, program % (TOGETHER * columns) // side
    count = tl.load(rows + block)
    if count > 0:
        lane = tl.arange(0, BLOCK_M)
        here = lane < count
        pair = tl.load(pairs + block * BLOCK_M + lane, mask=here, other=0)
        n, k = column * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
        row = (pair // ROWS_OF).to(tl.int64)
        left = x + row[:, None] * INPUTS + k[None, :]
        height: tl.constexpr = OUTPUTS * (2 if GATED else 1)
        right = weight + tl.load(experts + block).to(tl.int64) * (height * INPUTS)
        right += n.to(tl.int64)[None, :] * INPUTS + k[:, None]
        wanted = (n < OUTPUTS)[None, :]
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        other = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, INPUTS, BLOCK_K):
            valid = k < BLOCK_K if EVEN else k < INPUTS - start
            a = tl.load(left, mask=here[:, None] & valid[None, :], other=0.0)
            total = tl.dot(a, tl.load(right, mask=wanted & valid[:, None], other=0.0), total, input_precision=PRECISION)
            if GATED:
                b = tl.load(right + OUTPUTS * INPUTS, mask=wanted & valid[:, None], other=0.0)
                other = tl.dot(a, b, other, input_precision=PRECISION)
            left += BLOCK_K
            right += BLOCK_K
        if GATED:
            total = total / (1.0 + tl.exp(-total)) * other
        else:
            total *= tl.load(shares + pair, mask=here, other=0.0)[:, None]
        target = out + pair.to(tl.int64)[:, None] * OUTPUTS + n[None, :]
        tl.store(target, total.to(out.dtype.element_ty), mask=here[:, None] & wanted)


@triton.jit
def _sum(given, out, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for n in tl.static_range(TOP_K):
        total += tl.load(given + (token * TOP_K + n) * hidden + lane, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + lane, total.to(out.dtype.element_ty), mask=mask)
