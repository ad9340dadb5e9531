"""Experts as two grouped products, `moe_product`, over lists that are made on the device, `moe_align`.

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

from kvasir_runtime.kernels.gpu import linear, moe_align, moe_tiles
from kvasir_runtime.kernels.gpu.moe_product import Bank, bank, product
from kvasir_runtime.kernels.gpu.moe_tiles import MoeTiles
from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.linear import Linear, Weight

_SUMMED = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedMoe:
    """The layer that `build` builds."""

    router: Linear
    gate_up: Bank
    down: Bank
    top_k: int
    renormalised: bool

    def __call__(self, x: Tensor) -> Tensor:
        """kernels.moe."""
        tokens, hidden = x.shape
        if not tokens:
            return torch.empty_like(x)
        inner = self.down.columns
        pairs = tokens * self.top_k
        up = self._tiles(x, pairs, self.gate_up, inner, gated=True)
        down = self._tiles(x, pairs, self.down, hidden, gated=False)
        lists = moe_align.align(self.router(x), self.top_k, self.renormalised, up.block_m)
        between = x.new_empty((pairs, inner))
        product(x, self.gate_up, lists, between, up, rows_of=self.top_k, gated=True)
        given = x.new_empty((pairs, hidden))
        product(between, self.down, lists, given, down, rows_of=1, gated=False)
        out = torch.empty_like(x)
        block = min(_SUMMED, triton.next_power_of_2(hidden))
        _sum[(tokens, -(-hidden // block))](given, out, hidden, TOP_K=self.top_k, BLOCK=block, **options(block))
        return out

    def _tiles(self, x: Tensor, pairs: int, weight: Bank, outputs: int, *, gated: bool) -> MoeTiles:
        card, experts, short = _card(x.device), weight.values.shape[0], weight.short
        return moe_tiles.tiles(card, x.element_size(), pairs, experts, outputs, gated=gated, short=short)


def build(router: Tensor, gate_up: Weight, down: Weight, top_k: int, renormalised: bool) -> Linear:
    """kernels.moe."""
    experts = router.shape[0]
    return FusedMoe(
        router=linear.build(router, None),
        gate_up=bank(gate_up, experts),
        down=bank(down, experts),
        top_k=top_k,
        renormalised=renormalised,
    )


@cache
def _card(device: torch.device) -> str:
    """The card's name in the table of launch parameters."""
    if device.type != "cuda":
        return "sm_90"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@triton.jit
def _sum(given, out, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for n in tl.static_range(TOP_K):
        total += tl.load(given + (token * TOP_K + n) * hidden + lane, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + lane, total.to(out.dtype.element_ty), mask=mask)
