"""Routed experts whose weights are packed for the C++ kernels. Used by the table of CPUs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels import moe
from kvasir_runtime.kernels.act_and_mul import ActAndMul, Activation
from kvasir_runtime.kernels.cpu import linear
from kvasir_runtime.kernels.cpu.bindings import TYPES
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.gated import GatedProduct
from kvasir_runtime.kernels.linear import Build, Linear, Weight
from kvasir_runtime.kernels.moe import NO_BIASES, ExpertBiases, RoutedExperts


def packed_experts(
    library: Library, build: Build, gated: Callable[[Activation], Build], gate: ActAndMul
) -> moe.BuildMoe:
    """The same with our own kernels for the weights that they are made for; the builders are for others.

    gate: of activations that are not behind the product in one call.
    """
    otherwise = moe.grouped(build, gated)

    def built(
        router: Tensor,
        gate_up: Weight,
        down: Weight,
        routing: Routing,
        biases: ExpertBiases = NO_BIASES,
        activation: Activation = "silu",
    ) -> RoutedExperts:
        if not (linear.takes(gate_up) and linear.takes(down)):
            return otherwise(router, gate_up, down, routing, biases, activation)
        experts, fused = len(routing.computed(router)), activation == "silu"
        downs = linear.packed_together(library, tuple(moe.parts(down, experts)), moe.bias_parts(biases.down, experts))
        ups = linear.packed_together(
            library, tuple(moe.parts(gate_up, experts)), moe.bias_parts(biases.gate_up, experts), gated=fused
        )
        return PackedExperts(
            router=moe.router_logits(build, router, routing, biases),
            gate_up=ups if fused else tuple(GatedProduct(product=up, gate=gate, activation=activation) for up in ups),
            down=downs,
            routing=routing,
            bias=biases.choice,
            both=(linear.grouped_product(library, ups), linear.grouped_product(library, downs)),
            between=None if fused else partial(_activated, gate, activation),
        )

    return built


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedExperts(moe.GroupedExperts):
    """Whose products of all experts are two calls. both: of gate_up and of down; between: the gate, where it is not in
    the first.
    """

    both: tuple[linear.GroupedProduct, linear.GroupedProduct]
    between: Linear | None

    def given(self, rows: Tensor, counts: Tensor) -> Tensor:
        """As the experts one after another."""
        first = F.pad(counts.cumsum(0), (1, 0))
        gate_up, down = self.both
        wide = rows if rows.dtype in TYPES else rows.float()
        wide = gate_up(wide, first)
        return down(wide if self.between is None else self.between(wide), first).to(rows.dtype)


def _activated(gate: ActAndMul, activation: Activation, wide: Tensor) -> Tensor:
    return gate(wide, activation)
