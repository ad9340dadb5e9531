"""Rotary position embedding on the halves of each head (the layout of all families here).

    for t, h, i in tokens, heads, range(head_dim / 2):
        a, b = x[t, h, i], x[t, h, i + head_dim / 2]
        out[t, h, i]                = a * cos[t, i] - b * sin[t, i]
        out[t, h, i + head_dim / 2] = b * cos[t, i] + a * sin[t, i]

x: (tokens, heads, head_dim), contiguous in head_dim; cos, sin: (tokens, 1, head_dim) in x's dtype, where cos holds its
half twice and sin is negative in its first half, so that the formula is x * cos + swap(x) * sin. Three roundings in
16-bit types. Source: Su et al. 2021; halves as in GPT-NeoX.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x rotated by the angles of its positions, as a new tensor."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, minus_sin = cos[..., :half], sin[..., :half]
    return torch.cat((first * cos + second * minus_sin, second * cos - first * minus_sin), dim=-1)


def cpu(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As reference, in three calls."""
    return torch.addcmul(x * cos, torch.roll(x, x.shape[-1] // 2, dims=-1), sin)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One token to many, one head to many."""
    for tokens, heads, head_dim in ((1, 1, 8), (5, 3, 16), (33, 6, 64)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x = torch.randn(tokens, heads, head_dim, generator=generator).to(dtype)
            angle = torch.randn(tokens, 1, head_dim // 2, generator=generator)
            sin = angle.sin()
            yield x, torch.cat((angle.cos(),) * 2, dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)
