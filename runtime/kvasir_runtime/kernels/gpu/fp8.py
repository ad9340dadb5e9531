"""Products with many tokens and a weight in e4m3 with a scale for each row: activations are rounded to e4m3 as well.

Each token is scaled so that its largest value becomes e4m3's; the vendor's library multiplies 8 bits by 8 bits. It is
told not to shorten its sums: with them a tensor core keeps some 14 bits over all columns, which shows on long ones.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.gpu.dequant import to_e4m3
from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.quantized import QuantizedWeight

E4M3_MAX: Final = 448.0
_BLOCK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A layer, called with x. weight: e4m3 by row, both sizes multiples of 16; units: its scales, (rows,) float32."""

    weight: QuantizedWeight
    units: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, columns) -> (tokens, rows), x's dtype. float32 was asked for to be exact: x is not rounded then."""
        if x.dtype == torch.float32 or not multiplies(x.device):
            return quantized.plain(self.weight, self.bias)(x)
        out = product(*rounded(x), self.weight.values, self.units, x.dtype)
        return out if self.bias is None else out.add_(self.bias)


def multiplies(device: torch.device) -> bool:
    """Whether a device's library multiplies e4m3: cards from Ada on, and torch's own code on processors."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


def product(x: Tensor, steps: Tensor, weight: Tensor, units: Tensor, dtype: torch.dtype) -> Tensor:
    """x: (tokens, columns) e4m3; steps: (tokens, 1) float32. Scales go into the library's own loop where it takes them.

    That is Hopper and later with results in bfloat16; elsewhere they are multiplied behind it, in float32.
    """
    scales, inside = {"scale_a": steps, "scale_b": units.unsqueeze(0)}, torch.bfloat16
    by_row = dtype == inside and (x.device.type != "cuda" or torch.cuda.get_device_capability(x.device)[0] in (9, 10))
    if by_row:
        out: Tensor = torch._scaled_mm(x, weight.t(), **scales, out_dtype=inside, use_fast_accum=False)  # noqa: SLF001
        return out
    one = torch.ones((), dtype=torch.float32, device=x.device)
    wide = torch._scaled_mm(  # noqa: SLF001 -- torch has no public name for it
        x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=False
    )
    return (wide * steps).mul_(units).to(dtype)


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens, columns) in e4m3, and what each token is to be multiplied by again: (tokens, 1) float32.

    steps[t] = max(|x[t]|) / 448;  q[t] = round(x[t] / steps[t]), ties to even; zeros stay zeros
    """
    tokens, columns = x.shape
    out = torch.empty((tokens, columns), dtype=torch.float8_e4m3fn, device=x.device)
    steps = torch.empty((tokens, 1), dtype=torch.float32, device=x.device)
    block = min(_BLOCK, triton.next_power_of_2(columns))
    compiled = isinstance(_round, triton.JITFunction)
    _round[(tokens,)](x, out, steps, columns, x.stride(0), BLOCK=block, COMPILED=compiled, **options(block))
    return out, steps


@triton.jit
def _round(x, out, steps, columns, x_stride, BLOCK: tl.constexpr, COMPILED: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    most = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, columns, BLOCK):
        here = first + lane < columns
        some = tl.load(x + token * x_stride + first + lane, mask=here, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(some))
    largest = tl.max(most, 0)
    factor = tl.where(largest > 0, tl.div_rn(448.0, tl.maximum(largest, 1e-30)), 0.0)
    for first in range(0, columns, BLOCK):
        here = first + lane < columns
        some = tl.load(x + token * x_stride + first + lane, mask=here, other=0.0).to(tl.float32) * factor
        some = tl.minimum(tl.maximum(some, -448.0), 448.0)
        tl.store(out + token * columns + first + lane, to_e4m3(some, COMPILED), mask=here)
    tl.store(steps + token, tl.div_rn(largest, 448.0))
