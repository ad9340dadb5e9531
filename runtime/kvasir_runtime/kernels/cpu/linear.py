"""Weights of linear layers in the layout of linear.h, and the products with them.

Called by `cpu.ops`; `cpu.step` passes `Packed.struct` to the C++. Each builder reads its weight and leaves it as it is:
the caller drops it, so that it exists twice only for a moment.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels import host_memory, quantized
from kvasir_runtime.kernels.cpu import structs
from kvasir_runtime.kernels.cpu.library import Function, Library
from kvasir_runtime.kernels.linear import Build, Linear, Weight
from kvasir_runtime.kernels.quantized import GROUP, LONG_GROUP, QuantizedWeight, dequantized

TILE: Final = 16
PANEL_TILES: Final = 4
BFLOAT16_WEIGHTS: Final = 0
QUANTISED_WEIGHTS: Final = {8: 1, 4: 2}
E2M1_WEIGHTS: Final = 3
CODEBOOK_WEIGHTS: Final = 4
EXPONENT_BIAS: Final = 127  # of e8m0
AMX_VARIANT: Final = "avx512_bf16"  # the variant that has the kernels of AMX
_TABLES: Final = {
    name: torch.tensor([*(number + 128 for number in numbers), *(number % 256 for number in numbers)]).to(torch.uint8)
    for name, numbers in quantized.CODEBOOKS.items()
}
_SCALE_SHIFTS: Final = {torch.float8_e8m0fnu: 23, torch.float8_e4m3fn: 20}
_POINTER, _COUNT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class LinearStruct(ctypes.Structure):
    """kvasir::Linear."""

    _fields_ = (
        ("weight", _POINTER),
        ("scales", _POINTER),
        ("minima", _POINTER),
        ("units", _POINTER),
        ("bias", _POINTER),
        ("table", _POINTER),
        ("k", _COUNT),
        ("outputs", _COUNT),
        ("tiles", _COUNT),
        ("group", _COUNT),
        ("sharing", _COUNT),
        ("kind", _INT),
        ("gated", _INT),
        ("amx", _INT),
        ("scale_shift", _INT),
    )


class ProductStruct(ctypes.Structure):
    """kvasir::Product."""

    _fields_ = (("x", _POINTER), ("out", _POINTER), ("residual", _POINTER), ("rows", _COUNT), ("type", _INT))


class GroupedStruct(ctypes.Structure):
    """kvasir::Grouped."""

    _fields_ = (
        ("weights", ctypes.POINTER(ctypes.POINTER(LinearStruct))),
        ("first", _POINTER),
        ("count", _COUNT),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed weight: call it with x. struct points into the tensors of `kept`."""

    struct: LinearStruct
    kept: tuple[Tensor, ...]
    _product: Function
    _rows: Function

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, outputs) from contiguous (tokens, k): bfloat16; quantized weights take any type."""
        if x.dtype not in structs.TYPES:
            return self(x.float()).to(x.dtype)
        out = x.new_empty((x.shape[0], self.struct.outputs))
        args = ProductStruct(x=x.data_ptr(), out=out.data_ptr(), rows=x.shape[0], type=structs.TYPES[x.dtype])
        self._product(ctypes.byref(self.struct), ctypes.byref(args))
        return out

    @property
    def gives_rows(self) -> bool:
        """Whether `rows` can."""
        return self.struct.kind == BFLOAT16_WEIGHTS and not self.struct.gated

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of a bfloat16 weight that is not gated, exactly: (count, k) of ids (count,) int64, contiguous."""
        out = torch.empty((ids.shape[0], self.struct.k), dtype=torch.bfloat16)
        self._rows(ctypes.byref(self.struct), ids.data_ptr(), ids.shape[0], out.data_ptr())
        return out


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """The products of packed weights of one size with rows of their own, in one call: as each alone gives them."""

    pointers: "ctypes.Array[ctypes._Pointer[LinearStruct]]"
    outputs: int
    _product: Function

    def __call__(self, x: Tensor, first: Tensor) -> Tensor:
        """(rows, outputs) of contiguous (rows, k), float32 or bfloat16; first: (weights + 1,) int64, where the rows of
        each begin, from 0 on.
        """
        out = x.new_empty((x.shape[0], self.outputs))
        args = ProductStruct(x=x.data_ptr(), out=out.data_ptr(), rows=x.shape[0], type=structs.TYPES[x.dtype])
        grouped = GroupedStruct(weights=self.pointers, first=first.data_ptr(), count=len(self.pointers))
        self._product(ctypes.byref(grouped), ctypes.byref(args))
        return out


def grouped_product(library: Library, weights: Sequence[Packed]) -> GroupedProduct:
    """Of at least one weight; it points into them, so that they must live as long."""
    pointers = (ctypes.POINTER(LinearStruct) * len(weights))(*(ctypes.pointer(weight.struct) for weight in weights))
    function = library.function("linear_grouped", _POINTER, _POINTER)
    return GroupedProduct(pointers, int(weights[0].struct.outputs), function)


def with_amx(library: Library) -> tuple[Library, str]:
    """The library with AMX, where the processor has it and its products agree with those of AVX-512.

    Beside it what a banner adds to the variant's name: "+amx", "" without AMX, or why it is not used.
    """
    if library.isa != AMX_VARIANT or not library.handle.kvasir_amx():
        return library, ""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 96, generator=generator).bfloat16() for rows in (112, 75))
    wanted, found = (packed(replace(library, amx=amx), weight, None)(x).float() for amx in (False, True))
    if torch.allclose(found, wanted, rtol=2**-6, atol=2**-6):
        return replace(library, amx=True), "+amx"
    return library, " without AMX, whose products were wrong,"


def takes(weight: Weight) -> bool:
    """Whether the C++ computes with such a weight."""
    if isinstance(weight, QuantizedWeight):
        known = weight.format.e2m1 or not weight.format.floating
        return known and _groups(weight)[0] % 8 == 0 and weight.order is None
    return weight.dtype == torch.bfloat16


def packed_linear(library: Library, otherwise: Build, *, gated: bool = False) -> Build:
    """The builder that packs the weights that `takes` takes, and gives others to `otherwise`.

    gated: with silu behind the product, for kernels.gated.
    """

    def build(weight: Weight, bias: Tensor | None) -> Linear:
        return packed(library, weight, bias, gated=gated) if takes(weight) else otherwise(weight, bias)

    return build


def packed(
    library: Library,
    weight: Weight,
    bias: Tensor | None,
    *,
    gated: bool = False,
    room: Callable[[int], Tensor] | None = None,
) -> Packed:
    """The product with a weight that `takes` takes: (rows, k), contiguous; bias: (rows,) or None.

    gated: the first half of the rows is the gate, the second up, and calls return silu(gate) * up.
    Quantized weights take x in bfloat16 or float32 and round it to 8 bits, group by group of up to 128 (`_groups`):
    `rounded_product` is the formula. With AMX, 64 rows and more of bfloat16 are taken as they are, by weights that are
    rounded to it. Their scales are kept in float16, relative to a power of two for each row; those of e2m1 are bytes
    and stay exact, but for powers of two below 2^-126 of the row's largest, which become 0.
    room: gives so many bytes for the packed weight; `host_memory.allocate` if not given.
    """
    room = room or host_memory.allocate
    if isinstance(weight, QuantizedWeight):
        return _packed_quantized(library, weight, bias, room, gated=gated)
    (rows, k), weight = weight.shape, weight.contiguous()
    tiles = num_tiles(rows, gated=gated)
    target = room(tiles * TILE * -(-k // 2) * 4)
    types = (_POINTER, _COUNT, _COUNT, _COUNT, _INT, _POINTER)
    library.function("pack_bf16", *types)(weight.data_ptr(), rows, k, tiles, gated, target.data_ptr())
    biases = None if bias is None else tiled(bias.float(), tiles, gated=gated)
    struct = LinearStruct(
        weight=target.data_ptr(),
        bias=None if biases is None else biases.data_ptr(),
        k=k,
        outputs=rows // 2 if gated else rows,
        tiles=tiles,
        kind=BFLOAT16_WEIGHTS,
        gated=gated,
        amx=library.amx,
    )
    return made(library, struct, (target,) if biases is None else (target, biases))


def packed_together(
    library: Library, weights: Sequence[Weight], biases: Sequence[Tensor | None], *, gated: bool = False
) -> tuple[Packed, ...]:
    """Weights of the same size in one piece of memory: a system has only so many pieces for thousands of weights."""
    slab, both = Slab(len(weights)), zip(weights, biases, strict=True)
    return tuple(packed(library, weight, bias, gated=gated, room=slab.room) for weight, bias in both)


class Slab:
    """Room for so many weights of the same size, taken from the system when the first asks."""

    def __init__(self, weights: int) -> None:
        self._weights = weights
        self._left: list[Tensor] = []

    def room(self, num_bytes: int) -> Tensor:
        """As `host_memory.allocate` gives it, but that large ones begin at a cache line."""
        if not self._left:
            each = -(-num_bytes // 64) * 64
            self._left = list(host_memory.allocate(self._weights * each).split(each))[::-1]
        return self._left.pop()[:num_bytes]


def _packed_quantized(
    library: Library, weight: QuantizedWeight, bias: Tensor | None, room: Callable[[int], Tensor], *, gated: bool
) -> Packed:
    (rows, k), bits = weight.shape, weight.format.bits
    group, sharing = _groups(weight)
    tiles = num_tiles(rows, gated=gated)
    target = room(tiles * TILE * k * bits // 8)
    types = (_POINTER, _COUNT, _COUNT, _COUNT, _INT, _INT, _POINTER)
    values = weight.values.contiguous()
    library.function("pack_quantized", *types)(values.data_ptr(), rows, k, tiles, gated, bits, target.data_ptr())
    units, scales, *rest = (_exact_scales if weight.format.e2m1 else _coarse_scales)(weight)
    scales, *others = (_by_panel(tiled(one, tiles, gated=gated)) for one in (scales, *rest))
    minima = others[0] if others else scales
    by_row = tiled(units[:, 0], tiles, gated=gated)
    biases = by_row if bias is None else tiled(bias.float(), tiles, gated=gated)
    table = _TABLES.get(weight.format.codebook)
    struct = LinearStruct(
        weight=target.data_ptr(),
        scales=scales.data_ptr(),
        minima=minima.data_ptr(),
        units=by_row.data_ptr(),
        bias=None if bias is None else biases.data_ptr(),
        table=None if table is None else table.data_ptr(),
        k=k,
        outputs=rows // 2 if gated else rows,
        tiles=tiles,
        group=group,
        sharing=sharing,
        kind=CODEBOOK_WEIGHTS if table is not None else E2M1_WEIGHTS if weight.format.e2m1 else QUANTISED_WEIGHTS[bits],
        gated=gated,
        amx=library.amx,
        scale_shift=_SCALE_SHIFTS.get(weight.scales.dtype, 0),
    )
    return made(library, struct, (target, scales, minima, by_row, biases))


def _groups(weight: QuantizedWeight) -> tuple[int, int]:
    """Columns of a row that are rounded together, and how many of such groups share a scale of the weight.

    128 or else 32 where the weight's are whole ones of those, which the quickest loops take.
    """
    group = weight.shape[1] if weight.format.by_row else weight.format.group
    rounded = next((one for one in (LONG_GROUP, GROUP) if group % one == 0), group)
    return rounded, group // rounded


def _coarse_scales(weight: QuantizedWeight) -> tuple[Tensor, ...]:
    """Powers of two by row (rows, 1), and relative to them in float16 scales and minima, if there are any."""
    units = quantized.row_units(weight)
    both = (weight.scales,) if weight.minima is None else (weight.scales, weight.minima)
    return units, *((one.float() / units).half() for one in both)


def _exact_scales(weight: QuantizedWeight) -> tuple[Tensor, Tensor]:
    """Units (rows, 1) and the scales of e2m1 as bytes, exponents relative to the row's largest."""
    assert weight.units is not None
    scales = weight.scales.view(torch.uint8)
    if weight.scales.dtype == torch.float8_e4m3fn:
        return weight.units, scales
    largest = scales.amax(dim=1, keepdim=True).int()
    relative = (scales.int() - largest + EXPONENT_BIAS).clamp_(min=0).to(torch.uint8)
    return torch.ldexp(weight.units, largest - EXPONENT_BIAS), relative


def rounded_product(weight: QuantizedWeight, bias: Tensor | None, x: Tensor) -> Tensor:
    """What a Packed of a quantized weight computes, in float64 and plain torch: for tests and comparisons."""
    group = _groups(weight)[0]
    k, weight = weight.shape[1], quantized.in_groups(weight, group)
    grouped = x.float().view(x.shape[0], -1, group)
    largest = grouped.abs().amax(dim=2, keepdim=True)
    rounded = (grouped * torch.where(largest > 0, torch.tensor(127.0) / largest, 0.0)).round().view(x.shape[0], k)
    steps = (largest / 127).double().expand(-1, -1, group).reshape(x.shape[0], k)
    out = (rounded.double() * steps) @ _as_packed(weight).T
    return out if bias is None else out + bias.double()


def _as_packed(weight: QuantizedWeight) -> Tensor:
    """(rows, columns) float64."""
    if weight.units is not None:
        scales = (weight.scales.double() * weight.units.double()).repeat_interleave(weight.format.group, dim=1)
        return quantized.numbers(weight).double() * scales
    units, scales, *minima = _coarse_scales(weight)
    coarse = replace(weight, scales=scales, minima=minima[0] if minima else None)
    return (dequantized(coarse) * units).double()


def _by_panel(values: Tensor) -> Tensor:
    """(tiles * 16, groups) -> the panels' (groups, tiles, 16), one after another."""
    tiles, groups = values.shape[0] // TILE, values.shape[1]
    panels = values.view(tiles, TILE, groups).split(PANEL_TILES)
    return torch.cat([panel.permute(2, 0, 1).reshape(-1) for panel in panels])


def made(library: Library, struct: LinearStruct, kept: tuple[Tensor, ...]) -> Packed:
    """A Packed of a filled struct."""
    return Packed(
        struct=struct,
        kept=kept,
        _product=library.function("linear", _POINTER, _POINTER),
        _rows=library.function("linear_rows", _POINTER, _POINTER, _COUNT, _POINTER),
    )


def num_tiles(rows: int, *, gated: bool) -> int:
    """Tiles of a weight, those that padding fills included."""
    return 2 * -(-rows // (2 * TILE)) if gated else -(-rows // TILE)


def tiled(values: Tensor, tiles: int, *, gated: bool) -> Tensor:
    """Rows in the order of the tiles, zero where there is padding: (rows, ...) -> (tiles * 16, ...)."""
    halves = 2 if gated else 1
    rows, rest = values.shape[0] // halves, values.shape[1:]
    padded = values.new_zeros(halves, tiles // halves * TILE, *rest)
    padded[:, :rows] = values.view(halves, rows, *rest)
    return padded.view(halves, tiles // halves, TILE, *rest).transpose(0, 1).reshape(tiles * TILE, *rest)
