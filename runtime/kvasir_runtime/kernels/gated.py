"""The first half of a gated feed-forward layer: one product to gate and up, and the gate of them.

    out[t] = act_and_mul(linear(x[t]), "silu")                 # kernels.linear, kernels.act_and_mul

weight: (2 * dim, in_features), gate first; bias: (2 * dim,) or None; x: (tokens, in_features); out: (tokens, dim)
Errors as of the two together; a fused kernel rounds once where the two round twice. Built once like a linear layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime.kernels import act_and_mul, linear
from kvasir_runtime.kernels.act_and_mul import ActAndMul, Activation
from kvasir_runtime.kernels.linear import Build, Linear, NormedLinear, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """A gated feed-forward layer: this operation and the product behind it."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, hidden)."""
        return self.down(self.gate_up(x))

    def normed(self, x: Tensor, residual: Tensor | None, norm: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """As of `NormedLinear`, of the first product."""
        if not isinstance(self.gate_up, NormedLinear):
            return None
        found = self.gate_up.normed(x, residual, norm, eps)
        return None if found is None else (self.down(found[0]), found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedProduct:
    """A product to gate and up, and the gate behind it."""

    product: Linear
    gate: ActAndMul
    activation: Activation

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, hidden) -> (tokens, dim)."""
        return self.gate(self.product(x), self.activation)


def composed(build: Build, gate: ActAndMul, activation: Activation) -> Build:
    """A linear layer of the given builder and a gate behind it."""

    def gated(weight: Weight, bias: Tensor | None) -> Linear:
        return GatedProduct(product=build(weight, bias), gate=gate, activation=activation)

    return gated


def reference(weight: Weight, bias: Tensor | None) -> Linear:
    """The two one after the other."""
    return composed(linear.reference, act_and_mul.reference, "silu")(weight, bias)


def cpu(weight: Weight, bias: Tensor | None) -> Linear:
    """The two of the CPU one after the other."""
    return composed(linear.cpu, act_and_mul.cpu, "silu")(weight, bias)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """weight, bias and an x to call the result with; odd widths."""
    for tokens, inputs, dim in ((1, 8, 12), (5, 33, 7), (40, 64, 96)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            weight = torch.randn(2 * dim, inputs, generator=generator).to(dtype) / 4
            x = torch.randn(tokens, inputs, generator=generator).to(dtype)
            yield weight, None, x
            yield weight, torch.randn(2 * dim, generator=generator).to(dtype), x
