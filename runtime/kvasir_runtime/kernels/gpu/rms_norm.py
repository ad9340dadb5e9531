"""RMS norm with its residual addition: each row is read once and stays in registers between sum and product.

Short rows, as those of heads, share a program, so that it always has a few thousand elements.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options

_ELEMENTS = 2048


def launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """kernels.rms_norm; with a residual, x is overwritten by the sum."""
    dim = x.shape[-1]
    inner = weight.shape[0] if weight.dim() > 1 else 1
    rows = x if weight.dim() > 1 else x.reshape(-1, dim)
    num_rows, padded = x.numel() // dim, triton.next_power_of_2(dim)
    per_program = max(1, _ELEMENTS // padded)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rms_norm[(-(-num_rows // per_program),)](
        rows, x if residual is None else residual, weight, out, eps, num_rows,
        rows.stride(0), rows.stride(-2), 0 if residual is None else residual.stride(-2),
        INNER=inner, DIM=dim, PADDED=padded, ROWS=per_program, ADD=residual is not None,
        **options(per_program * padded),
    )  # fmt: skip
    return out, rows.view(x.shape) if residual is not None else x


@triton.jit(do_not_specialize=["num_rows"])
def _rms_norm(
    x, residual, weight, out, eps, num_rows, token_stride, inner_stride, residual_stride,
    INNER: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED)
    mask = (row < num_rows)[:, None] & (dims < DIM)[None, :]
    row = row.to(tl.int64)
    place = row // INNER * token_stride + row % INNER * inner_stride
    total = tl.load(x + place[:, None] + dims[None, :], mask=mask, other=0.0)
    if ADD:
        total += tl.load(residual + (row * residual_stride)[:, None] + dims[None, :], mask=mask, other=0.0)
        tl.store(x + place[:, None] + dims[None, :], total, mask=mask)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 1) / DIM + eps)
    factor = tl.load(weight + (row % INNER * DIM)[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    result = wide * scale[:, None] * factor
    tl.store(out + (row * DIM)[:, None] + dims[None, :], result.to(out.dtype.element_ty), mask=mask)
