"""Experts as two grouped products, `moe_product`, over lists that are made on the device, `moe_align`.

The first gathers rows of x and has the gate behind it, computed in float32 and rounded once; the second multiplies by
the shares and scatters to a row of each pair, which a third kernel sums for each token, experts upwards, so that a
result is the same in every run. Nothing is read by the host: grids follow from the numbers of tokens and experts, and
programs without work end at once. Tokens that share an expert share the reading of its weights.
Source: the grouping of Gale et al. 2022 (MegaBlocks), by lists instead of a sparse matrix.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels import moe
from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.expert_routing import Routing, ranked
from kvasir_runtime.kernels.gpu import linear, moe_align, moe_tiles
from kvasir_runtime.kernels.gpu.act_and_mul import KINDS, RELU2
from kvasir_runtime.kernels.gpu.moe_product import Bank, bank, product
from kvasir_runtime.kernels.gpu.moe_tiles import MoeTiles
from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.linear import Linear, Weight
from kvasir_runtime.kernels.moe import NO_BIASES, ExpertBiases, RoutedExperts

_SUMMED = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedMoe:
    """The layer that `build` builds."""

    router: Linear
    gate_up: Bank
    down: Bank
    routing: Routing
    bias: Tensor | None
    gate: int

    def __call__(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        """kernels.moe."""
        logits, x = self.router(x), x if read is None else read
        tokens, hidden = x.shape
        if not tokens:
            return torch.empty_like(x)
        inner, top_k = self.down.columns, self.routing.top_k
        pairs = tokens * top_k
        up = self._tiles(x, pairs, self.gate_up, inner, gated=self.gate != RELU2)
        down = self._tiles(x, pairs, self.down, hidden, gated=False)
        lists = moe_align.align(*self._ranked(logits), self.routing, up.block_m)
        between = x.new_empty((pairs, inner))
        rows_of = top_k
        if self.routing.scaled_inputs:  # a row of its own for each pair
            x, rows_of = (x.unsqueeze(1) * lists.shares.view(tokens, top_k, 1)).to(x.dtype).flatten(0, 1), 1
            lists = replace(lists, shares=torch.ones_like(lists.shares))
        product(x, self.gate_up, lists, between, up, rows_of=rows_of, gate=self.gate)
        given = x.new_empty((pairs, hidden))
        product(between, self.down, lists, given, down, rows_of=1, gate=0)
        out = x.new_empty((tokens, hidden))
        block = min(_SUMMED, triton.next_power_of_2(hidden))
        _sum[(tokens, -(-hidden // block))](given, out, hidden, TOP_K=top_k, BLOCK=block, **options(block))
        return out

    def _ranked(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """`ranked`, where it is not the logits themselves."""
        plain = not self.routing.by_itself and self.routing.groups == 1 and self.bias is None
        return (logits, logits) if plain else ranked(logits, self.routing, self.bias)

    def _tiles(self, x: Tensor, pairs: int, weight: Bank, outputs: int, *, gated: bool) -> MoeTiles:
        card, experts, short = _card(x.device), weight.values.shape[0], weight.short
        return moe_tiles.tiles(card, x.element_size(), pairs, experts, outputs, gated=gated, short=short)


def build(
    router: Tensor,
    gate_up: Weight,
    down: Weight,
    routing: Routing,
    biases: ExpertBiases = NO_BIASES,
    activation: Activation = "silu",
) -> RoutedExperts:
    """kernels.moe."""
    experts = router.shape[0]
    return FusedMoe(
        router=moe.router_logits(linear.build, router, routing, biases),
        gate_up=bank(gate_up, biases.gate_up, experts),
        down=bank(down, biases.down, experts),
        routing=routing,
        bias=biases.choice,
        gate=RELU2 if activation == "relu2" else KINDS[activation],
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
