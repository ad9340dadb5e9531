"""The gate of a gated feed-forward layer: one pass over both halves, computed in float32 and rounded once."""

from typing import Final

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from kvasir_runtime.kernels.act_and_mul import CLAMP, SLOPE, Activation
from kvasir_runtime.kernels.gpu.options import options

_BLOCK = 2048
KINDS: Final[dict[Activation, int]] = {"silu": 1, "gelu": 2, "clamped": 3}
"""Of `activated`; 0 is no gate."""
RELU2: Final = 4
"""An activation without a gate, of `moe_product`."""
_CLAMP, _SLOPE = constexpr(CLAMP), constexpr(SLOPE)


def launch(x: Tensor, activation: Activation) -> Tensor:
    """kernels.act_and_mul."""
    tokens, dim = x.shape[0], x.shape[1] // 2
    out = x.new_empty((tokens, dim))
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _act_and_mul[(tokens, -(-dim // block))](x, out, dim, KIND=KINDS[activation], BLOCK=block, **options(block))
    return out


@triton.jit
def _act_and_mul(x, out, dim, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < dim
    gate = tl.load(x + row * 2 * dim + lane, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * dim + dim + lane, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * dim + lane, activated(gate, up, KIND).to(out.dtype.element_ty), mask=mask)


@triton.jit
def activated(gate, up, KIND: tl.constexpr):
    """The gate times up, in float32. KIND: of KINDS."""
    sigmoid_of = gate
    if KIND == 2:
        # (1 + tanh(y)) / 2 is the sigmoid of 2 y; past -80 the power would leave float32 though the product is 0.
        sigmoid_of = tl.maximum(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate), -80.0)
    elif KIND == 3:
        gate = tl.minimum(gate, _CLAMP)
        up = tl.minimum(tl.maximum(up, -_CLAMP), _CLAMP) + 1.0
        sigmoid_of = tl.maximum(_SLOPE * gate, -80.0)
    return gate / (1.0 + tl.exp(-sigmoid_of)) * up
