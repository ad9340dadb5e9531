"""The gate of a gated feed-forward layer: an activation of the first half of each row times the second half.

    for t, i in tokens, range(dim):
        out[t, i] = activation(x[t, i]) * x[t, dim + i]
    silu(g) = g / (1 + exp(-g))
    gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g**3)))
clamped, with g = min(x[t, i], 7) and u = max(-7, min(x[t, dim + i], 7)):
        out[t, i] = g / (1 + exp(-1.702 * g)) * (u + 1)
relu2, of experts without a gate, whose rows stay as wide as they are:
        out[t, i] = max(x[t, i], 0)**2

x: (tokens, 2 * dim), gate first, contiguous; out: (tokens, dim), same dtype. One extra rounding in 16-bit types.
Sources: Shazeer 2020 (the gate), Hendrycks and Gimpel 2016 (GELU), OpenAI 2025 (gpt-oss: clamped), So et al. 2021
(relu2).
"""

from collections.abc import Callable, Iterator
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["silu", "gelu", "clamped", "relu2"]
ActAndMul = Callable[[Tensor, Activation], Tensor]
CLAMP: Final = 7.0
SLOPE: Final = 1.702
"""Of the sigmoid in clamped."""


def reference(x: Tensor, activation: Activation) -> Tensor:
    """activation(gate) * up."""
    if activation == "relu2":
        return F.relu(x).square()
    gate, up = x.chunk(2, dim=-1)
    return _clamped(gate, up) if activation == "clamped" else activated(gate, activation) * up


def cpu(x: Tensor, activation: Activation) -> Tensor:
    """As reference, without one of its tensors."""
    if activation == "relu2":
        return F.relu(x).square_()
    gate, up = x.chunk(2, dim=-1)
    return _clamped(gate, up) if activation == "clamped" else activated(gate, activation).mul_(up)


def activated(x: Tensor, activation: Literal["silu", "gelu"]) -> Tensor:
    """The activation alone, by torch."""
    return F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh")


def _clamped(gate: Tensor, up: Tensor) -> Tensor:
    """In float32, rounded once."""
    wide, other = gate.float().clamp(max=CLAMP), up.float().clamp(-CLAMP, CLAMP)
    return ((wide * SLOPE).sigmoid_().mul_(wide).mul_(other.add_(1))).to(gate.dtype)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One token and many, odd widths, gates near and far from zero."""
    for activation, scale in (("silu", 1), ("gelu", 4), ("clamped", 6)):
        for tokens, dim in ((1, 8), (5, 33), (40, 96)):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                yield (torch.randn(tokens, 2 * dim, generator=generator) * scale).to(dtype), activation
