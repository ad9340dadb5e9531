"""Routed experts as linear layers of their own: tokens are sorted by expert, and each that has some is computed once.

`kernels.moe` has the contract. For processors: the device is asked how many tokens each expert has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kvasir_runtime.kernels import moe
from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.linear import Build, Linear, Weight
from kvasir_runtime.kernels.moe import NO_BIASES, BuildMoe, ExpertBiases, RoutedExperts, Routing


class ExpertRows(NamedTuple):
    """Rows for some experts. given: of `GroupedExperts`. order: places of (tokens, top_k), flat, expert after expert.
    counts: of each expert's, int64.
    """

    given: Callable[[Tensor, Tensor], Tensor]
    order: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedExperts:
    """bias: of the choice."""

    router: Linear
    gate_up: tuple[Linear, ...]
    down: tuple[Linear, ...]
    routing: Routing
    bias: Tensor | None = None

    def __call__(self, x: Tensor, read: Tensor | None = None) -> Tensor:
        """(x, read) -> out."""
        chosen, share = self.choice(x)
        held = self.routing.held or range(len(self.down))
        counts = torch.bincount(chosen.view(-1), minlength=held.stop)
        order = chosen.view(-1).argsort(stable=True)
        if self.routing.held is not None:
            others, counts = int(counts[: held.start].sum()), counts[held.start : held.stop]
            order = order[others : others + int(counts.sum())]
        return self.summed(x if read is None else read, share, [ExpertRows(self.given, order, counts)])

    def choice(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`moe.shares` of x."""
        return moe.shares(*moe.ranked(self.router(x), self.routing, self.bias), self.routing)

    def summed(self, x: Tensor, share: Tensor, computed: Sequence[ExpertRows]) -> Tensor:
        """What the experts of these rows give to each token, (tokens, hidden). x: what experts read. share: (tokens,
        top_k), of the choice.
        """
        top_k, every = self.routing.top_k, sum(rows.order.shape[0] for rows in computed) == share.numel()
        back = (x.new_empty if every else x.new_zeros)(share.numel(), x.shape[1])
        for given, order, counts in computed:
            rows = x.index_select(0, order // top_k)
            if self.routing.scaled_inputs:
                rows = (rows * share.view(-1)[order, None]).to(x.dtype)
            back.index_copy_(0, order, given(rows, counts))
        if self.routing.scaled_inputs:
            share = torch.ones_like(share)
        return (back.view(-1, top_k, x.shape[1]).float() * share.unsqueeze(2)).sum(dim=1).to(x.dtype)

    def given(self, rows: Tensor, counts: Tensor) -> Tensor:
        """What the experts make of rows, (rows, hidden), of which counts[i], int64, are the i-th's, in this order."""
        out, first = torch.empty_like(rows), 0
        for gate_up, down, count in zip(self.gate_up, self.down, counts.tolist(), strict=True):
            if count:
                out[first : first + count] = down(gate_up(rows[first : first + count]))
                first += count
        return out


def grouped(build: Build, gated: Callable[[Activation], Build]) -> BuildMoe:
    """The builder whose experts are linear layers of the given builders. gated: with an activation behind them."""

    def built(
        router: Tensor,
        gate_up: Weight,
        down: Weight,
        routing: Routing,
        biases: ExpertBiases = NO_BIASES,
        activation: Activation = "silu",
    ) -> RoutedExperts:
        experts = len(routing.computed(router))
        return GroupedExperts(
            router=moe.router_logits(build, router, routing, biases),
            gate_up=moe.products(gated(activation), gate_up, biases.gate_up, experts),
            down=moe.products(build, down, biases.down, experts),
            routing=routing,
            bias=biases.choice,
        )

    return built
