"""Products with a weight whose groups of columns have scales: int8, int4 with minima, e2m1, and e4m3 in blocks of 128.

Numbers go to the tensor cores as they are, a group at a time, and what a group gives is scaled in float32: scales stay
exact, and a step costs a multiplication for each result instead of one for each number. Minima, and what the bit tricks
of `gpu.numbers` add, are taken off by the sum of x over the group, which a product with ones gives in place.

The builder repacks: what a step reads lies together, step after step, as
    values (steps, rows, bytes): int8 64 columns; int4 and MXFP4 64, NVFP4 32, the first half in low halves; e4m3 128
    words  (planes, steps, rows): int8, int4 two float16 scales in an int32, then for int4 two minima; e2m1 two scales
           of the file, a byte each, in an int16; e4m3 a float32
Scales are relative to a power of two for each row: float16 ones, as wide ones of Q4_K need, and those of MXFP4, so that
the numbers fit into float16. Somewhat more tokens than a launch takes have a few of them; some hundred unpack what they
multiply (`dequant_gemm`); more take the weight in their own type, unpacked a piece at a time, and the vendor's library.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.gpu import act_and_mul, dequant_gemm, small_gemm, tuning_table
from kvasir_runtime.kernels.gpu.dequant import e2m1, e4m3, nibbles, of_rows, offset, ones, short_scale
from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.gpu.small_gemm import GemmPlan, GemmShape, settle, share
from kvasir_runtime.kernels.quantized import NVFP4_GROUP, QuantFormat, QuantizedWeight

INT8, INT4, E4M3, MXFP4, NVFP4 = 8, 4, 1, 32, 16
_STEPS: Final = {INT8: (64, 64), INT4: (64, 32), E4M3: (128, 128), MXFP4: (64, 32), NVFP4: (32, 16)}
"""Columns and bytes of a step of each kind; groups of integers are taken 32 columns at a time, two a step."""
_KINDS: Final[dict[int, tuning_table.Kind]] = {
    INT8: "int8",
    INT4: "int4",
    E4M3: "fp8_blocks",
    MXFP4: "mxfp4",
    NVFP4: "nvfp4",
}
_PIECE = 32 << 20  # elements that are unpacked at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScaledLinear:
    """A layer, called with x. See the module for values and words; units: (rows,) float32; kind: of _KINDS."""

    kind: int
    values: Tensor
    words: Tensor
    units: Tensor
    bias: Tensor | None
    plan: GemmPlan

    def __call__(self, x: Tensor) -> Tensor:
        """kernels.linear, or kernels.gated."""
        most, tokens = self.plan.product.most_tokens, x.shape[0]
        if tokens > most * self.plan.product.passes or x.dtype == torch.float32:
            some = tuning_table.tuning_of(x.device).dequant_tokens[_KINDS[self.kind]]
            return several(self, x) if tokens <= some and x.dtype != torch.float32 else many(self, x)
        return few(self, x) if x.shape[0] <= most else torch.cat([few(self, part) for part in x.split(most)])


def takes(weight: QuantizedWeight) -> bool:
    """Whether groups are of a kind that there are steps for."""
    if weight.format.e2m1 or weight.format.codebook:
        return weight.format.e2m1
    return weight.format.group == 128 if weight.format.floating else weight.format.group in (32, 64, 128, 256)


def kind_of(format_: QuantFormat) -> int:
    """Of _KINDS, of what `takes` takes."""
    if format_.e2m1:
        return NVFP4 if format_.group == NVFP4_GROUP else MXFP4
    return E4M3 if format_.floating else format_.bits


def build(weight: QuantizedWeight, bias: Tensor | None, *, gated: bool) -> GroupScaledLinear:
    """A layer by the table of the weight's card."""
    kind = kind_of(weight.format)
    (rows, columns), (_, step_bytes) = weight.shape, _STEPS[kind]
    card = tuning_table.tuning_of(weight.values.device)
    shape = GemmShape(rows=rows, columns=columns, step_bytes=step_bytes, gated=gated)
    product = card.product(_KINDS[kind], shape.outputs)
    values, words, units = packed(weight, kind)
    return GroupScaledLinear(
        kind=kind,
        values=values,
        words=words,
        units=units,
        bias=bias,
        plan=small_gemm.plan(product, shape, card.processors, card.shared_bytes, values.device),
    )


def packed(weight: QuantizedWeight, kind: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values, words and units of a weight."""
    (rows, columns), (step_columns, step_bytes) = weight.shape, _STEPS[kind]
    steps = -(-columns // step_columns)
    if kind == E4M3:
        values, words = weight.values.view(torch.int8), weight.scales.float().unsqueeze(0)
        units = torch.ones(rows, dtype=torch.float32, device=values.device)
    elif weight.units is not None:
        values = _by_halves(_filled(quantized.codes(weight), steps * step_columns), step_columns)
        scales, units = weight.scales.view(torch.uint8), 2 * weight.units.view(-1)  # which are of halves
        if kind == MXFP4:
            scales, units = of_rows(scales, units)
        words = _filled(scales, 2 * steps).view(torch.int16).unsqueeze(0)
    else:
        q = _filled(quantized.numbers(weight), steps * step_columns)
        values = q if kind == INT8 else _by_halves(q, step_columns)
        by_row = quantized.row_units(weight)
        planes = [weight.scales] if weight.minima is None else [weight.scales, weight.minima]
        words = torch.stack([_pairs(plane.float() / by_row, weight.format.group, steps) for plane in planes])
        units = by_row.view(-1)
    return _by_step(values.view(rows, steps, step_bytes)), words.transpose(1, 2).contiguous(), units.contiguous()


def _by_halves(q: Tensor, columns: int) -> Tensor:
    """Numbers of 4 bits, (rows, steps * columns) int8, in pairs: those of the first half of a step in low halves."""
    halves = q.view(q.shape[0], -1, 2, columns // 2)
    return halves[:, :, 0] | (halves[:, :, 1] << 4)


def _by_step(values: Tensor) -> Tensor:
    return values.transpose(0, 1).contiguous()


def _filled(values: Tensor, columns: int) -> Tensor:
    """With zeros up to so many columns, contiguous."""
    return torch.nn.functional.pad(values, (0, columns - values.shape[1])).contiguous()


def _pairs(scales: Tensor, group: int, steps: int) -> Tensor:
    """(rows, groups) float32, of groups that are multiples of 32, as (rows, steps) int32: two float16 each."""
    each = scales.half().repeat_interleave(group // 32, dim=1)
    return _filled(each, 2 * steps).view(torch.int32)


def few(layer: GroupScaledLinear, x: Tensor) -> Tensor:
    """The product by the kernel, whatever the type of x."""
    plan, shape, launch = layer.plan, layer.plan.shape, layer.plan.launch(x)
    steps = layer.values.shape[0]
    _grouped[launch.grid](
        x, layer.values, layer.words, layer.units, layer.bias, launch.out, launch.parts, plan.arrived,
        x.shape[0], shape.outputs, shape.columns, steps, shape.rows, steps * shape.rows, x.stride(0),
        **_sizes(layer.kind), OFFSET=offset(x.dtype),
        GATED=shape.gated, BIASED=layer.bias is not None, SPLITS=plan.splits,
        MASKED=shape.columns % plan.product.columns != 0, COMPILED=isinstance(_grouped, triton.JITFunction),
        BLOCK_M=launch.block_m, BLOCK_N=launch.block_n, STAGES=launch.num_stages,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps, num_stages=launch.num_stages, enable_fp_fusion=True,
    )  # fmt: skip
    return launch.out


def several(layer: GroupScaledLinear, x: Tensor) -> Tensor:
    """The product by the kernel that unpacks the weight's tiles itself."""
    tile = tuning_table.tuning_of(x.device).dequant_tile(layer.plan.shape.rows, x.shape[0])
    out = dequant_gemm.product(x, layer.values, layer.words, layer.units, layer.bias, tile, _sizes(layer.kind))
    return act_and_mul.launch(out, "silu") if layer.plan.shape.gated else out


def many(layer: GroupScaledLinear, x: Tensor) -> Tensor:
    """The product by the vendor's library, a piece of the rows after another."""
    rows, columns = layer.plan.shape.rows, layer.plan.shape.columns
    out = x.new_empty((x.shape[0], rows))
    step = max(_PIECE // columns // 64 * 64, 64)
    for first in range(0, rows, step):
        piece = unpacked(layer, first, min(step, rows - first), x.dtype)
        torch.mm(x, piece.t(), out=out[:, first : first + piece.shape[0]])
    if layer.bias is not None:
        out += layer.bias
    return act_and_mul.launch(out, "silu") if layer.plan.shape.gated else out


def unpacked(layer: GroupScaledLinear, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """Rows of the weight itself, computed in float32 and rounded once: (count, columns)."""
    shape, steps = layer.plan.shape, layer.values.shape[0]
    out = torch.empty((count, shape.columns), dtype=dtype, device=layer.values.device)
    _unpack[(-(-count // 64), steps)](
        layer.values, layer.words, layer.units, out, first, count, shape.columns, shape.rows, steps * shape.rows,
        **_sizes(layer.kind), BLOCK=64, **options(64 * 32),
    )  # fmt: skip
    return out


def _sizes(kind: int) -> dict[str, int]:
    """Constants of the kernels. WIDTH: columns of a group as it is taken."""
    columns, step_bytes = _STEPS[kind]
    return {"KIND": kind, "COLUMNS": columns, "BYTES": step_bytes, "WIDTH": columns if kind == E4M3 else columns // 2}


@triton.jit
def _low(word):
    """The float16 in the low half of an int32, as float32."""
    return word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _high(word):
    return (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _numbers(values, n, inside, BYTES: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr):
    """WIDTH of the bytes of a step for each row n."""
    lane = FIRST + tl.arange(0, WIDTH)
    place = values + n[:, None] * BYTES + lane[None, :]
    return tl.load(place, mask=inside[:, None], other=0, eviction_policy="evict_first")


@triton.jit
def _added(
    acc, tile, values, words, plane, n, inside, left, right, left_sum, right_sum,
    KIND: tl.constexpr, OFFSET: tl.constexpr, DTYPE: tl.constexpr, COMPILED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """acc and what a step gives. tile: its first bytes; left, right: x of its groups, (columns, tokens), and the sums.

    Where a step is one group it is left's; only int4 looks at the sums.
    """
    word = tl.load(words + n, mask=inside, other=0)
    if KIND == 1:
        acc += tl.dot(e4m3(tile, DTYPE, COMPILED), left, input_precision=PRECISION) * word[:, None]
    elif KIND == 8:
        acc += tl.dot(tile.to(DTYPE), left, input_precision=PRECISION) * _low(word)[:, None]
        other = _numbers(values, n, inside, 64, 32, 32).to(DTYPE)
        acc += tl.dot(other, right, input_precision=PRECISION) * _high(word)[:, None]
    elif KIND == 32 or KIND == 16:
        low, high = word.to(tl.int32) & 255, (word.to(tl.int32) >> 8) & 255
        first, second = e2m1(tile, DTYPE, False, COMPILED), e2m1(tile, DTYPE, True, COMPILED)
        acc += tl.dot(first, left, input_precision=PRECISION) * short_scale(low, KIND == 16)[:, None]
        acc += tl.dot(second, right, input_precision=PRECISION) * short_scale(high, KIND == 16)[:, None]
    else:
        least = tl.load(words + plane + n, mask=inside, other=0)
        acc += tl.dot(nibbles(tile, DTYPE, False, COMPILED), left, input_precision=PRECISION) * _low(word)[:, None]
        acc -= left_sum * (_low(least) + OFFSET * _low(word))[:, None]
        acc += tl.dot(nibbles(tile, DTYPE, True, COMPILED), right, input_precision=PRECISION) * _high(word)[:, None]
        acc -= right_sum * (_high(least) + OFFSET * _high(word))[:, None]
    return acc


@triton.jit(do_not_specialize=["tokens", "steps"])
def _grouped(
    x, values, words, units, bias, out, parts, arrived, tokens, rows, columns, steps, all_rows, plane, x_stride,
    KIND: tl.constexpr, COLUMNS: tl.constexpr, BYTES: tl.constexpr, WIDTH: tl.constexpr, OFFSET: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr, SPLITS: tl.constexpr, MASKED: tl.constexpr, COMPILED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x.dtype.element_ty
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    k = tl.arange(0, WIDTH)
    inside = n < rows
    here = (m < tokens)[None, :]
    beside = here
    token = x + m[None, :] * x_stride + k[:, None]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = acc
    first, last = share(steps, SPLITS)
    place = first.to(tl.int64) * all_rows
    for step in tl.range(first, last, num_stages=STAGES):
        at = step * COLUMNS
        if MASKED:
            here = (m < tokens)[None, :] & (at + k < columns)[:, None]
            beside = (m < tokens)[None, :] & (at + WIDTH + k < columns)[:, None]
        tile = _numbers(values + place * BYTES, n, inside, BYTES, WIDTH, 0)
        left = tl.load(token + at, mask=here, other=0.0)
        right = left
        left_sum = acc
        right_sum = acc
        if KIND != 1:
            right = tl.load(token + at + WIDTH, mask=beside, other=0.0)
        if KIND == 4:
            each = ones(tile, dtype, COMPILED)
            left_sum = tl.dot(each, left, input_precision=PRECISION)
            right_sum = tl.dot(each, right, input_precision=PRECISION)
        acc = _added(
            acc, tile, values + place * BYTES, words + place, plane, n, inside, left, right, left_sum, right_sum,
            KIND, OFFSET, dtype, COMPILED, PRECISION,
        )  # fmt: skip
        if GATED:
            above = values + (place + rows) * BYTES
            tile = _numbers(above, n, inside, BYTES, WIDTH, 0)
            up = _added(
                up, tile, above, words + place + rows, plane, n, inside, left, right, left_sum, right_sum,
                KIND, OFFSET, dtype, COMPILED, PRECISION,
            )  # fmt: skip
        place += all_rows
    settle(
        acc, up, acc, columns, 0.0, parts, arrived, units, bias, out, tokens, rows,
        False, GATED, True, BIASED, SPLITS, BLOCK_N, BLOCK_M,
    )  # fmt: skip


@triton.jit(do_not_specialize=["first", "count"])
def _unpack(
    values, words, units, out, first, count, columns, all_rows, plane,
    KIND: tl.constexpr, COLUMNS: tl.constexpr, BYTES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    n = first + row
    place = tl.program_id(1).to(tl.int64) * all_rows
    word = tl.load(words + place + n, mask=inside, other=0)
    by_row = tl.load(units + n, mask=inside, other=0.0)
    k = tl.arange(0, WIDTH)
    at = tl.program_id(1) * COLUMNS + k
    target = out + row.to(tl.int64)[:, None] * columns + at[None, :]
    tile = _numbers(values + place * BYTES, n, inside, BYTES, WIDTH, 0)
    if KIND == 1:
        result = e4m3(tile, tl.float32, False) * word[:, None]
        tl.store(target, result.to(out.dtype.element_ty), mask=inside[:, None] & (at < columns)[None, :])
    else:
        if KIND == 32 or KIND == 16:
            low = short_scale(word.to(tl.int32) & 255, KIND == 16) * by_row
            high = short_scale((word.to(tl.int32) >> 8) & 255, KIND == 16) * by_row
            first_half = e2m1(tile, tl.float32, False, False) * low[:, None]
            second_half = e2m1(tile, tl.float32, True, False) * high[:, None]
        elif KIND == 8:
            first_half = tile.to(tl.float32) * (_low(word) * by_row)[:, None]
            tile = _numbers(values + place * BYTES, n, inside, BYTES, WIDTH, WIDTH)
            second_half = tile.to(tl.float32) * (_high(word) * by_row)[:, None]
        else:
            least = tl.load(words + plane + place + n, mask=inside, other=0)
            low, high = _low(word) * by_row, _high(word) * by_row
            first_half = (tile & 15).to(tl.float32) * low[:, None] - (_low(least) * by_row)[:, None]
            second_half = ((tile >> 4) & 15).to(tl.float32) * high[:, None] - (_high(least) * by_row)[:, None]
        tl.store(target, first_half.to(out.dtype.element_ty), mask=inside[:, None] & (at < columns)[None, :])
        beyond = inside[:, None] & (at + WIDTH < columns)[None, :]
        tl.store(target + WIDTH, second_half.to(out.dtype.element_ty), mask=beyond)
