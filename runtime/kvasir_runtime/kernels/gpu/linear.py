"""Products with few tokens and a weight in 16 bits, or in e4m3 with a scale for each row: the weight as one stream.

The weight's rows take the place that tensor cores need filled, tokens the one that may be small. Many tokens, other
types and odd shapes go to torch, that is to the vendor's library, or for other numbers to `gpu.grouped`.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels import linear as operation
from kvasir_runtime.kernels.gated import GatedProduct
from kvasir_runtime.kernels.gpu import act_and_mul, fp8, group_scaled_gemm, small_gemm, tuning_table
from kvasir_runtime.kernels.gpu.dequant import e4m3
from kvasir_runtime.kernels.gpu.small_gemm import NO_NORM, GemmPlan, GemmShape, NormBefore, settle, share, weighed
from kvasir_runtime.kernels.linear import Linear, Weight
from kvasir_runtime.kernels.quantized import QuantizedWeight

_MIN_ROWS = 64
_ALIGNED = 16  # columns that one 16-byte load of e4m3 takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """A layer, called with x. weight: (rows, columns), 16 bits or int8 patterns of e4m3; units: (rows,) float32 then.

    many: the product beyond the plan's number of tokens, gate included where the plan is gated.
    """

    weight: Tensor
    units: Tensor | None
    bias: Tensor | None
    plan: GemmPlan
    many: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """kernels.linear, or kernels.gated."""
        if x.shape[0] > self.plan.product.most_tokens or x.dtype == torch.float32:
            return self.many(x)
        return few(self, x)

    def normed(self, x: Tensor, residual: Tensor | None, norm: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """kernels.linear.NormedLinear: of a weight in bfloat16.

        In float16 a number times the norm's weight may be too large. A step of e4m3 has half of the bytes to hide the
        norm behind: its instructions, counted, take longer than the memory.
        """
        if x.shape[0] > self.plan.product.most_tokens or x.dtype != torch.bfloat16 or self.units is not None:
            return None
        before = small_gemm.norm_before(x, residual, norm, eps)
        return few(self, x, before), before.total


def build(weight: Weight, bias: Tensor | None) -> Linear:
    """kernels.linear with the launch parameters of the weight's card."""
    return _built(weight, bias, gated=False)


def gated(weight: Weight, bias: Tensor | None) -> Linear:
    """kernels.gated, of few tokens in one kernel."""
    return _built(weight, bias, gated=True)


def _built(weight: Weight, bias: Tensor | None, *, gated: bool) -> Linear:
    if not takes(weight, gated=gated):
        product = operation.unpacked(weight, bias)
        return _then_gate(product) if gated else product
    if isinstance(weight, QuantizedWeight):
        return (
            of_rows(weight, bias, gated=gated)
            if weight.format.by_row
            else group_scaled_gemm.build(weight, bias, gated=gated)
        )
    return streamed(weight, None, bias, gated=gated, many=operation.reference(weight, bias))


def takes(weight: Weight, *, gated: bool) -> bool:
    """Whether there is a kernel for a weight: 16 bits or quantized, enough rows, columns that loads can take whole."""
    rows, columns = weight.shape
    if isinstance(weight, QuantizedWeight):
        fits = group_scaled_gemm.takes(weight) or weight.format.by_row
    else:
        fits = weight.element_size() == 2
    return fits and columns % _ALIGNED == 0 and rows % _ALIGNED == 0 and rows >= _MIN_ROWS * (2 if gated else 1)


def of_rows(weight: QuantizedWeight, bias: Tensor | None, *, gated: bool) -> Linear:
    """A layer of e4m3 with a scale for each row."""
    units = weight.scales.view(-1).float()
    patterns = weight.values.view(torch.int8)
    return streamed(patterns, units, bias, gated=gated, many=fp8.Scaled(weight=weight, units=units, bias=bias))


def streamed(weight: Tensor, units: Tensor | None, bias: Tensor | None, *, gated: bool, many: Linear) -> Streamed:
    """A layer by the table of the weight's card. many: the product alone."""
    card = tuning_table.tuning_of(weight.device)
    product = card.product("bits16" if units is None else "fp8", weight.shape[0] // (2 if gated else 1))
    shape = GemmShape(
        rows=weight.shape[0],
        columns=weight.shape[1],
        step_bytes=product.columns * weight.element_size(),
        gated=gated,
    )
    return Streamed(
        weight=weight,
        units=units,
        bias=bias,
        plan=small_gemm.plan(product, shape, card.processors, card.shared_bytes, weight.device),
        many=_then_gate(many) if gated else many,
    )


def _then_gate(product: Linear) -> Linear:
    return GatedProduct(product=product, gate=act_and_mul.launch, activation="silu")


def few(layer: Streamed, x: Tensor, norm: NormBefore | None = None) -> Tensor:
    """The product by the kernel, whatever the type of x, behind a norm where there is one."""
    plan, shape, launch = layer.plan, layer.plan.shape, layer.plan.launch(x, norm)
    _stream[launch.grid](
        x, layer.weight, layer.units, layer.bias, launch.out, launch.parts, plan.arrived,
        x.shape[0], shape.outputs, shape.columns, x.stride(0), layer.weight.stride(0),
        *(NO_NORM if norm is None else norm.arguments()),
        NORMED=norm is not None, ADDED=norm is not None and norm.residual is not None,
        FP8=layer.units is not None, GATED=shape.gated, BIASED=layer.bias is not None, SPLITS=plan.splits,
        MASKED=shape.columns % plan.product.columns != 0, COMPILED=isinstance(_stream, triton.JITFunction),
        BLOCK_M=launch.block_m, BLOCK_N=launch.block_n, BLOCK_K=plan.product.columns, STAGES=launch.num_stages,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps, num_stages=launch.num_stages, enable_fp_fusion=True,
    )  # fmt: skip
    return launch.out


@triton.jit(do_not_specialize=["tokens"])
def _stream(
    x, weight, units, bias, out, parts, arrived, tokens, rows, columns, x_stride, weight_stride,
    residual, total, norm, eps, residual_stride, NORMED: tl.constexpr, ADDED: tl.constexpr,
    FP8: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr, SPLITS: tl.constexpr, MASKED: tl.constexpr,
    COMPILED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    gate_row = n.to(tl.int64)[:, None] * weight_stride + k[None, :]
    up_row = (n + rows).to(tl.int64)[:, None] * weight_stride + k[None, :]
    inside = (n < rows)[:, None]
    token = m[None, :] * x_stride + k[:, None]
    here = (m < tokens)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = acc
    squares = tl.zeros((BLOCK_K, BLOCK_M), tl.float32)
    beside, kept = residual, total
    if ADDED:
        beside = residual + m[None, :] * residual_stride + k[:, None]
        kept = total + m[None, :] * columns + k[:, None]
    first, last = share(tl.cdiv(columns, BLOCK_K), SPLITS)
    for step in tl.range(first, last, num_stages=STAGES):
        at = step * BLOCK_K
        wanted, known = here, inside
        if MASKED:
            wanted, known = here & (at + k < columns)[:, None], inside & (at + k < columns)[None, :]
        some = tl.load(x + token + at, mask=wanted, other=0.0)
        if NORMED:
            factor = tl.load(norm + at + k, mask=at + k < columns, other=0.0).to(tl.float32)
            some, squares = weighed(
                some, squares, factor, beside + at if ADDED else x, kept + at if ADDED else x, wanted, ADDED
            )
        tile = tl.load(weight + gate_row + at, mask=known, other=0, eviction_policy="evict_first")
        if FP8:
            tile = e4m3(tile, x.dtype.element_ty, COMPILED)
        acc = tl.dot(tile, some, acc, input_precision=PRECISION)
        if GATED:
            above = tl.load(weight + up_row + at, mask=known, other=0, eviction_policy="evict_first")
            if FP8:
                above = e4m3(above, x.dtype.element_ty, COMPILED)
            up = tl.dot(above, some, up, input_precision=PRECISION)
    settle(
        acc, up, tl.sum(squares, 0), columns, eps, parts, arrived, units, bias, out, tokens, rows,
        NORMED, GATED, FP8, BIASED, SPLITS, BLOCK_N, BLOCK_M,
    )  # fmt: skip
