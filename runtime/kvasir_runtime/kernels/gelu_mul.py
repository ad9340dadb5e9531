"""The gate of a gated feed-forward layer whose activation is GELU, in the form that a hyperbolic tangent approximates.

    for t, i in tokens, range(dim):
        g = x[t, i]
        out[t, i] = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g**3))) * x[t, dim + i]

x: (tokens, 2 * dim), gate first, contiguous; out: (tokens, dim), same dtype. One extra rounding in 16-bit types.
Sources: Hendrycks and Gimpel 2016 (GELU), Shazeer 2020 (the gate).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def reference(x: Tensor) -> Tensor:
    """gelu(gate) * up."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def cpu(x: Tensor) -> Tensor:
    """As reference, without one of its tensors."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One token and many, odd widths, gates far from zero."""
    for tokens, dim in ((1, 8), (5, 33), (40, 96)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            yield ((torch.randn(tokens, 2 * dim, generator=generator) * 4).to(dtype),)
