"""Rotary embedding where it is not part of `split_qkv`: all heads of a token in one program, one rounding."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options


def launch(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """kernels.rope."""
    tokens, heads, head = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    padded_heads, padded = triton.next_power_of_2(heads), triton.next_power_of_2(head // 2)
    _rope[(tokens,)](
        x, cos, sin, out, *x.stride()[:2],
        HEADS=heads, HALF=head // 2, PADDED_HEADS=padded_heads, PADDED=padded,
        **options(2 * padded_heads * padded),
    )  # fmt: skip
    return out


@triton.jit
def _rope(
    x, cos, sin, out, token_stride, head_stride,
    HEADS: tl.constexpr, HALF: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, PADDED_HEADS)[:, None]
    dims = tl.arange(0, PADDED)[None, :]
    mask = (heads < HEADS) & (dims < HALF)
    place = x + token * token_stride + heads * head_stride + dims
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    angle = token * 2 * HALF + HALF + dims  # the second half, where sin has its own sign
    c = tl.load(cos + angle, mask=dims < HALF, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=dims < HALF, other=0.0).to(tl.float32)
    target = out + (token * HEADS + heads) * 2 * HALF + dims
    tl.store(target, (first * c - second * s).to(out.dtype.element_ty), mask=mask)
    tl.store(target + HALF, (second * c + first * s).to(out.dtype.element_ty), mask=mask)
