"""Weights in 8 or 4 bits with a scale for each group of columns, and a product with them in plain torch.

    for o, i in rows, columns:  g = i // group, 0 where a row is one group
        weight[o, order[i]] = units[o] * scales[o, g] * q[o, i] - (minima[o, g] if there are minima else 0)

values: 8 bits: (rows, columns) int8, or e4m3 where the format is floating. 4 bits: (rows, columns / 2) uint8, numbers
        0..15, codes of e2m1 where the format is floating, whose q are in halves, or places in the format's codebook;
        an even column in the low half
scales, minima: (rows, groups) float16 or float32; 4 bits have minima (8 * scale where a file has none). Codebooks and
        e2m1 have none, and scales of e2m1 are bytes, 0 and more: e4m3 of groups of 16, powers of two (e8m0) of others
units:  (rows, 1) float32, of e2m1 alone; 1 where there are none
order:  (columns,) int64, which column of the weight each column of the numbers is; None where they are the same
Activations are not quantized here: x stays what it is, sums are in float32, and the result is rounded once.

`linear` takes a QuantizedWeight in place of a weight; the code that packs it drops it afterwards. `weights` makes it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP: Final = 32
"""Columns that share a scale: that of llama.cpp's Q8_0, Q4_0 and Q4_K, so that their numbers are taken as they are."""
LONG_GROUP: Final = 128
"""What processors round rows by, and have their own weights of 8 bits in, where a weight's columns are whole groups."""
_TILE: Final = 1 << 20
CODEBOOKS: Final[Mapping[str, Sequence[int]]] = {
    "nf4": (-112, -78, -59, -44, -32, -21, -10, 0, 9, 18, 28, 38, 49, 63, 81, 112),
    "bnb-fp4": (0, 1, 80, 120, 40, 60, 20, 30, 0, -1, -80, -120, -40, -60, -20, -30),
    "iq4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
}
"""Integers of 8 bits that numbers of 4 bits are places of. Those of IQ4_NL and IQ4_XS of llama.cpp are their own. The
values of bitsandbytes are fractions, and those of NF4 no multiples of one: here they are times 112 and 120, by which
the rounding adds least, off by at most 0.4 and 0.3 % of the largest of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantFormat:
    """bits: 8 or 4. group: columns that share a scale, 0 for all of a row. wide: scales in float32 instead of float16.

    Q4_K needs wide ones: its scales are products of two numbers, which 16 bits do not hold exactly. floating: numbers
    are e4m3 (four bits of exponent, three of mantissa, no infinities), with 8 bits; their scales are wide; or e2m1 (0,
    0.5, 1, 1.5, 2, 3, 4, 6), with 4. ordered: columns have an order of their own, in which those of a group lie side by
    side. codebook: of CODEBOOKS the one whose places the 4 bits are; "" for numbers themselves.
    """

    bits: int
    group: int = GROUP
    wide: bool = False
    floating: bool = False
    ordered: bool = False
    codebook: str = ""

    @property
    def e2m1(self) -> bool:
        """Whether numbers are e2m1."""
        return self.floating and self.bits == 4

    @property
    def ranged(self) -> bool:
        """Whether groups have minima."""
        return self.bits == 4 and self.table is None

    @property
    def table(self) -> Sequence[int] | None:
        """q of each of 16 codes; None where numbers are themselves."""
        return HALVES if self.e2m1 else CODEBOOKS.get(self.codebook)

    @property
    def widened(self) -> "QuantFormat":
        """What holds the numbers exactly in integers of 8 bits, where they are e2m1; else the same."""
        return replace(self, bits=8, wide=True, floating=False) if self.e2m1 else self

    @property
    def scale_dtype(self) -> torch.dtype:
        """Of scales and minima."""
        if self.e2m1:
            return torch.float8_e4m3fn if self.group == NVFP4_GROUP else torch.float8_e8m0fnu
        return torch.float32 if self.wide else torch.float16

    @property
    def by_row(self) -> bool:
        """Whether a row has one scale."""
        return self.group == 0

    @property
    def value_dtype(self) -> torch.dtype:
        """Of the numbers, two to an element where they have 4 bits."""
        if self.bits == 4:
            return torch.uint8
        return torch.float8_e4m3fn if self.floating else torch.int8

    @property
    def name(self) -> str:
        """As options and banners call it."""
        return self.codebook or f"{'fp' if self.floating else 'int'}{self.bits}"

    def groups(self, columns: int) -> int:
        """Scales of a row of so many columns."""
        return columns // self.group if self.group else 1

    def fits(self, columns: int) -> bool:
        """Whether rows of so many columns are whole groups."""
        return self.by_row or columns % self.group == 0

    def num_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a weight in this format, as QuantizedWeight holds it."""
        each = self.scale_dtype.itemsize * (2 if self.ranged else 1)
        beside = (8 * columns if self.ordered else 0) + (4 * rows if self.e2m1 else 0)
        return rows * columns * self.bits // 8 + rows * self.groups(columns) * each + beside

    def packed_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a weight as processors hold it, packed: scales of integers in 16 bits. Without what pads its tiles
        and a float32 for each row. What the kernels there do not take is held as it is."""
        if self.ordered or (self.floating and not self.e2m1):
            return self.num_bytes(rows, columns)
        each = self.scale_dtype.itemsize if self.e2m1 else 2 + 2 * self.ranged
        return rows * (columns * self.bits // 8 + self.groups(columns) * each)


FP8: Final = QuantFormat(bits=8, group=0, wide=True, floating=True)
"""e4m3 with a scale for each row, in which `--quantization fp8` holds the layers."""
NVFP4_GROUP: Final = 16
MXFP4: Final = QuantFormat(bits=4, floating=True)
NVFP4: Final = QuantFormat(bits=4, group=NVFP4_GROUP, floating=True)
HALVES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Of each code of e2m1 its worth in halves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeight:
    """A weight in a format; see the module for layout and meaning."""

    format: QuantFormat
    values: Tensor
    scales: Tensor
    minima: Tensor | None
    order: Tensor | None = None
    units: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of the weight."""
        return self.values.shape[0], self.values.shape[1] * (8 // self.format.bits)

    def rows(self, first: int, count: int) -> "QuantizedWeight":
        """A view of some rows."""
        return self.each(lambda tensor: tensor[first : first + count])

    def each(self, change: Callable[[Tensor], Tensor]) -> "QuantizedWeight":
        """The same with every tensor of rows changed."""
        return replace(
            self,
            values=change(self.values),
            scales=change(self.scales),
            minima=None if self.minima is None else change(self.minima),
            units=None if self.units is None else change(self.units),
        )

    def columns(self, first: int, count: int) -> "QuantizedWeight":
        """A view of some columns, which are whole groups of a weight without an order. Raises ValueError."""
        if (first, count) == (0, self.shape[1]):
            return self
        group, each = self.format.group, 8 // self.format.bits
        if self.order is not None or not (self.format.fits(first) and self.format.fits(count)):
            raise ValueError(f"columns {first} to {first + count} are no whole groups that lie side by side")
        groups = slice(None) if self.format.by_row else slice(first // group, (first + count) // group)
        return replace(
            self,
            values=self.values[:, first // each : (first + count) // each],
            scales=self.scales[:, groups],
            minima=None if self.minima is None else self.minima[:, groups],
        )

    def moved(self, device: torch.device) -> "QuantizedWeight":
        """The same on a device."""
        order = None if self.order is None else self.order.to(device)
        return replace(self.each(lambda tensor: tensor.to(device)), order=order)

    def copy_(self, other: "QuantizedWeight") -> None:
        """Overwrite with another of the same format and shape."""
        self.values.copy_(other.values)
        self.scales.copy_(other.scales)
        if self.minima is not None and other.minima is not None:
            self.minima.copy_(other.minima)
        if self.order is not None and other.order is not None:
            self.order.copy_(other.order)
        if self.units is not None and other.units is not None:
            self.units.copy_(other.units)

    def in_order(self) -> "QuantizedWeight":
        """The numbers as they lie, as a weight whose columns have no order of their own."""
        return replace(self, format=replace(self.format, ordered=False), order=None)


def empty(format: QuantFormat, rows: int, columns: int, device: torch.device) -> QuantizedWeight:  # noqa: A002 -- its name
    """Room for a weight. Raises ValueError where columns are no whole groups."""
    if not format.fits(columns):
        raise ValueError(f"{columns} columns are no whole groups of {format.group}")
    groups = (rows, format.groups(columns))
    values = (rows, columns * format.bits // 8)
    return QuantizedWeight(
        format=format,
        values=torch.empty(values, dtype=format.value_dtype, device=device),
        scales=torch.empty(groups, dtype=format.scale_dtype, device=device),
        minima=torch.empty(groups, dtype=format.scale_dtype, device=device) if format.ranged else None,
        order=torch.empty(columns, dtype=torch.int64, device=device) if format.ordered else None,
        units=torch.empty(rows, 1, device=device) if format.e2m1 else None,
    )


def numbers(weight: QuantizedWeight) -> Tensor:
    """q of the formula: (rows, columns) int8, or e4m3."""
    if weight.format.bits == 8:
        return weight.values
    table = weight.format.table
    return codes(weight) if table is None else _of_table(weight.values, table)


def codes(weight: QuantizedWeight) -> Tensor:
    """Of numbers of 4 bits what is in the file: (rows, columns) int8, 0..15."""
    both = torch.stack((weight.values & 15, weight.values >> 4), dim=2)
    return both.view(weight.shape).view(torch.int8)


def _of_table(codes: Tensor, table: Sequence[int]) -> Tensor:
    """(rows, columns) int8; a byte at a time, which is twice as fast as number by number."""
    each = torch.arange(256, device=codes.device)
    worth = torch.tensor(table, dtype=torch.int8, device=codes.device)
    pairs = torch.stack((worth[each & 15], worth[each >> 4]), dim=1).view(torch.int16).flatten()
    return pairs.index_select(0, codes.flatten().int()).view(torch.int8).view(codes.shape[0], -1)


def packed(q: Tensor) -> Tensor:
    """The values of 4-bit numbers 0..15: (rows, columns) -> (rows, columns / 2) uint8."""
    pairs = q.to(torch.uint8).view(q.shape[0], -1, 2)
    return pairs[:, :, 0] | (pairs[:, :, 1] << 4)


def dequantized(weight: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight itself: (rows, columns), computed in float32, then rounded to dtype."""
    rows, columns = weight.shape
    grouped = numbers(weight).float().view(rows, weight.scales.shape[1], -1) * wide_scales(weight).unsqueeze(2)
    if weight.minima is not None:
        grouped -= weight.minima.float().unsqueeze(2)
    plain = grouped.view(rows, columns).to(dtype)
    return plain if weight.order is None else plain.index_select(1, weight.order.argsort())


def wide_scales(weight: QuantizedWeight) -> Tensor:
    """(rows, groups) float32, times units."""
    scales = weight.scales.float()
    return scales if weight.units is None else scales * weight.units


def widened(weight: QuantizedWeight) -> QuantizedWeight:
    """The same numbers in the format's `widened` one."""
    if not weight.format.e2m1:
        return weight
    return replace(weight, format=weight.format.widened, values=numbers(weight), scales=wide_scales(weight), units=None)


def in_groups(weight: QuantizedWeight, group: int = GROUP) -> QuantizedWeight:
    """The same numbers with the scales of larger groups written out for each of so many columns."""
    each = weight.shape[1] if weight.format.by_row else weight.format.group
    times = each // group
    if times < 2 or each % group:
        return weight
    return replace(
        weight,
        format=replace(weight.format, group=group),
        scales=weight.scales.repeat_interleave(times, dim=1),
        minima=None if weight.minima is None else weight.minima.repeat_interleave(times, dim=1),
    )


def row_units(weight: QuantizedWeight) -> Tensor:
    """A power of two for each row, (rows, 1), that brings its largest scale to 0.5..1 and its minima into float16."""
    largest = weight.scales.float().abs().amax(dim=1, keepdim=True)
    if weight.minima is not None:
        largest = torch.maximum(largest, weight.minima.float().abs().amax(dim=1, keepdim=True) / 1024)
    return torch.where(largest > 0, torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent), 1.0)


def reference(weight: QuantizedWeight, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The formula in float32."""
    return partial(_in_float32, weight, bias)


def plain(
    weight: QuantizedWeight, bias: Tensor | None, multiply: Callable[[Tensor, Tensor], Tensor] = F.linear
) -> Callable[[Tensor], Tensor]:
    """The same in x's type, a tile of rows at a time: for devices without kernels of ours. Saves memory, not time."""
    return partial(_by_tiles, weight, bias, multiply)


def _in_float32(weight: QuantizedWeight, bias: Tensor | None, x: Tensor) -> Tensor:
    out = F.linear(x.float(), dequantized(weight), None if bias is None else bias.float())
    return out.to(x.dtype)


def _by_tiles(
    weight: QuantizedWeight, bias: Tensor | None, multiply: Callable[[Tensor, Tensor], Tensor], x: Tensor
) -> Tensor:
    rows, columns = weight.shape
    step = max(_TILE // columns, 1)
    out = x.new_empty(x.shape[0], rows)
    for first in range(0, rows, step):
        tile = dequantized(weight.rows(first, min(step, rows - first)), x.dtype)
        out[:, first : first + step] = multiply(x, tile)
    return out if bias is None else out.add_(bias)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """A quantized weight, a bias or None, and an x to call the result with."""
    wide = QuantFormat(bits=4, wide=True)
    larger = (replace(wide, group=128), replace(wide, group=64, ordered=True))
    listed = (QuantFormat(bits=4, codebook="iq4"), QuantFormat(bits=4, codebook="nf4", group=64, wide=True))
    plain = (QuantFormat(bits=8), QuantFormat(bits=4), wide, FP8, replace(FP8, group=128))
    formats = (*plain, *larger, MXFP4, NVFP4, *listed)
    for tokens, columns, rows in ((1, 32, 16), (3, 96, 33), (33, 768, 64), (5, 2048, 128)):
        for format_ in formats:
            if not format_.fits(columns):
                continue
            weight = drawn(format_, rows, columns, generator)
            for dtype in (torch.float32, torch.bfloat16):
                x = torch.randn(tokens, columns, generator=generator).to(dtype)
                yield weight, None, x
                yield weight, torch.randn(rows, generator=generator).to(dtype), x


def drawn(format: QuantFormat, rows: int, columns: int, generator: torch.Generator) -> QuantizedWeight:  # noqa: A002 -- its name
    """A weight of random numbers, about a thousandth to a tenth large, for cases and measurements."""
    weight = empty(format, rows, columns, torch.device("cpu"))
    if weight.units is not None:
        weight.values.copy_(torch.randint(0, 256, weight.values.shape, generator=generator))
        weight.scales.copy_(torch.exp2(torch.randint(-1, 2, weight.scales.shape, generator=generator).float()))
        weight.units.copy_((1 + torch.rand(weight.units.shape, generator=generator)) / 1024)
        return weight
    if format.floating:
        weight.values.copy_(torch.randn(weight.values.shape, generator=generator) * 100)
        weight.scales.copy_((1 + torch.rand(weight.scales.shape, generator=generator)) / 4096)
        return weight
    low, high = (-127, 128) if format.bits == 8 else (0, 256)
    weight.values.copy_(torch.randint(low, high, weight.values.shape, generator=generator))
    if weight.order is not None:
        weight.order.copy_(torch.randperm(columns, generator=generator))
    most = 2**format.bits if format.table is None else 256
    weight.scales.copy_(torch.rand(weight.scales.shape, generator=generator) * (0.1 / most))
    if weight.minima is not None:
        weight.minima.copy_(weight.scales.float() * (7 + torch.rand(weight.scales.shape, generator=generator)))
    return weight
