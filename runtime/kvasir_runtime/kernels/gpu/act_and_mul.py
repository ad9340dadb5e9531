"""The gate of a gated feed-forward layer: one pass over both halves, computed in float32 and rounded once."""

import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.act_and_mul import Activation
from kvasir_runtime.kernels.gpu.options import options

_BLOCK = 2048


def launch(x: Tensor, activation: Activation) -> Tensor:
    """kernels.act_and_mul."""
    tokens, dim = x.shape[0], x.shape[1] // 2
    out = x.new_empty((tokens, dim))
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _act_and_mul[(tokens, -(-dim // block))](x, out, dim, GELU=activation == "gelu", BLOCK=block, **options(block))
    return out


@triton.jit
def _act_and_mul(x, out, dim, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < dim
    gate = tl.load(x + row * 2 * dim + lane, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * dim + dim + lane, mask=mask, other=0.0).to(tl.float32)
    if GELU:
        # (1 + tanh(y)) / 2 is the sigmoid of 2 y; past -80 the power would leave float32 though the product is 0.
        sigmoid_of = tl.maximum(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate), -80.0)
    else:
        sigmoid_of = gate
    result = gate / (1.0 + tl.exp(-sigmoid_of)) * up
    tl.store(out + row * dim + lane, result.to(out.dtype.element_ty), mask=mask)
