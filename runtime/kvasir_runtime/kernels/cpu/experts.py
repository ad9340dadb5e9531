"""Routed experts whose weights are packed for the C++ kernels. Used by the table of CPUs."""

from collections.abc import Callable

from torch import Tensor

from kvasir_runtime.kernels import moe
from kvasir_runtime.kernels.act_and_mul import ActAndMul, Activation
from kvasir_runtime.kernels.cpu import linear
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.gated import GatedProduct
from kvasir_runtime.kernels.linear import Build, Linear, Weight
from kvasir_runtime.kernels.moe import NO_BIASES, ExpertBiases, Routing


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
    ) -> Linear:
        if not (linear.takes(gate_up) and linear.takes(down)):
            return otherwise(router, gate_up, down, routing, biases, activation)
        held, fused = routing.computed(router), activation == "silu"
        experts = len(held)
        ups: tuple[Linear, ...] = linear.packed_together(
            library, tuple(moe.parts(gate_up, experts)), moe.bias_parts(biases.gate_up, experts), gated=fused
        )
        if not fused:
            ups = tuple(GatedProduct(product=product, gate=gate, activation=activation) for product in ups)
        return moe.GroupedExperts(
            router=moe.router_logits(build, router, routing, biases),
            held=held,
            gate_up=ups,
            down=linear.packed_together(library, tuple(moe.parts(down, experts)), moe.bias_parts(biases.down, experts)),
            routing=routing,
            bias=biases.choice,
        )

    return built
