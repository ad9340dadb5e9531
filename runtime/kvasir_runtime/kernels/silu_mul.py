"""The gate of a gated feed-forward layer.

    for t, i in tokens, range(dim):
        out[t, i] = x[t, i] / (1 + exp(-x[t, i])) * x[t, dim + i]

x: (tokens, 2 * dim), gate first, contiguous; out: (tokens, dim), same dtype. One extra rounding in 16-bit types.
Source: Shazeer 2020 (SwiGLU).
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def reference(x: Tensor) -> Tensor:
    """silu(gate) * up."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def cpu(x: Tensor) -> Tensor:
    """As reference, in place: x is consumed, so that nothing of its size is allocated twice."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One token and many, odd widths."""
    for tokens, dim in ((1, 8), (5, 33), (40, 96)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            yield (torch.randn(tokens, 2 * dim, generator=generator).to(dtype),)
