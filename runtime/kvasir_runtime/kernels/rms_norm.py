"""Root-mean-square normalisation, with the residual addition that precedes it in a decoder.

    for t in tokens:
        if residual: x[t] = x[t] + residual[t]
        scale = 1 / sqrt(sum(x[t, i]**2 for i) / dim + eps)
        out[t, i] = x[t, i] * scale * weight[i]

x, residual: (..., dim), same dtype; weight: (dim,) or, for norms of heads, broadcastable to the last axes of x, in x's
dtype or in float32.
The sum is taken in float32; out has x's dtype. Error: 1e-6 relative in float32, one rounding in 16-bit types.
Source: Zhang and Sennrich 2019, equation 4.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def reference(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised x (+ residual), and the sum itself, which is the next residual."""
    total = x if residual is None else x + residual
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(total.dtype), total


def cpu(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As reference, through torch's own operator: one call instead of seven."""
    total = x if residual is None else x.add_(residual)
    if weight.dtype != total.dtype:
        return reference(total, None, weight, eps)
    if weight.dim() > 1:
        return F.rms_norm(total, (total.shape[-1],), None, eps) * weight, total
    return F.rms_norm(total, (total.shape[-1],), weight, eps), total


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Arguments of both, from one row to a batch, with and without residual, plain and per head, weights in float32."""
    for shape, weight_shape in (((1, 64), (64,)), ((7, 33), (33,)), ((5, 6, 16), (6, 16))):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x = torch.randn(shape, generator=generator).to(dtype)
            weight = torch.randn(weight_shape, generator=generator).to(dtype)
            yield x, None, weight, 1e-6
            yield x, None, weight.float(), 1e-6
            yield x.clone(), torch.randn(shape, generator=generator).to(dtype), weight, 1e-5
