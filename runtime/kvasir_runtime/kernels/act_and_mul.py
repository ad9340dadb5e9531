"""The gate of a gated feed-forward layer: an activation of the first half of each row times the second half.

    for t, i in tokens, range(dim):
        out[t, i] = activation(x[t, i]) * x[t, dim + i]
    silu(g) = g / (1 + exp(-g))
    gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g**3)))

x: (tokens, 2 * dim), gate first, contiguous; out: (tokens, dim), same dtype. One extra rounding in 16-bit types.
Sources: Shazeer 2020 (the gate), Hendrycks and Gimpel 2016 (GELU).
"""

from collections.abc import Callable, Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["silu", "gelu"]
ActAndMul = Callable[[Tensor, Activation], Tensor]


def reference(x: Tensor, activation: Activation) -> Tensor:
    """activation(gate) * up."""
    gate, up = x.chunk(2, dim=-1)
    return activated(gate, activation) * up


def cpu(x: Tensor, activation: Activation) -> Tensor:
    """As reference, without one of its tensors."""
    gate, up = x.chunk(2, dim=-1)
    return activated(gate, activation).mul_(up)


def activated(x: Tensor, activation: Activation) -> Tensor:
    """The activation alone, by torch."""
    return F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh")


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One token and many, odd widths, gates near and far from zero."""
    for activation, scale in (("silu", 1), ("gelu", 4)):
        for tokens, dim in ((1, 8), (5, 33), (40, 96)):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                yield (torch.randn(tokens, 2 * dim, generator=generator) * scale).to(dtype), activation
