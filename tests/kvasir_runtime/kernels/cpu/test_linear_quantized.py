"""Quantized linear layers in C++: their formula in float64, the same bits in every batch, what they cost in error."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.cpu import linear
from kvasir_runtime.kernels.cpu.library import Library, variants
from kvasir_runtime.kernels.quantized import MXFP4, NVFP4, QuantFormat, QuantizedWeight

CPU = torch.device("cpu")
# rows, columns, group: one tile and less, whole and partial panels, groups from one line to the whole row, groups of 32
# and 128 in whole panels (which are in assembly) and more of them than a block of columns holds, 2 or 6 with one scale
SHAPES = [
    (16, 32, 32),
    (7, 64, 8),
    (33, 96, 32),
    (100, 80, 16),
    (20, 24, 24),
    (130, 2048, 64),
    (1, 768, 768),
    (130, 96, 32),
    (64, 1056, 32),
    (100, 1152, 128),
    (130, 768, 0),
]
UNIT = {torch.float32: 2e-6, torch.bfloat16: 2**-8}


@pytest.fixture
def library(variant: Library) -> Library:
    """Each variant that this processor runs."""
    return variant


def random_weight(rows: int, columns: int, group: int, bits: int, *, scale: float = 0.01) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(rows + columns)
    weight = quantized.empty(QuantFormat(bits=bits, group=group, wide=True), rows, columns, CPU)
    low, high = (-128, 128) if bits == 8 else (0, 256)
    weight.values.copy_(torch.randint(low, high, weight.values.shape, generator=generator))
    weight.scales.copy_(torch.rand(weight.scales.shape, generator=generator) * scale)
    if weight.minima is not None:
        weight.minima.copy_(weight.scales * (7 + torch.rand(weight.scales.shape, generator=generator)))
    return weight


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def assert_close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.double(), want, rtol=UNIT[got.dtype], atol=2e-6 * float(want.abs().max()))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", list(UNIT))
@pytest.mark.parametrize(("rows", "columns", "group"), SHAPES)
def test_it_is_its_formula_in_every_batch(
    library: Library, rows: int, columns: int, group: int, bits: int, dtype: torch.dtype
) -> None:
    weight, bias, x = random_weight(rows, columns, group, bits), normal(rows), normal(500, columns, dtype=dtype)
    packed = linear.packed(library, weight, bias)
    whole = packed(x)
    assert whole.dtype == dtype
    assert_close(whole, linear.rounded_product(weight, bias, x))
    for count in (1, 2, 3, 4, 7, 33, 200):
        assert torch.equal(packed(x[:count]), whole[:count])
        assert torch.equal(packed(x[-count:]), whole[-count:])


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("columns", "group", "rounded", "sharing"),
    [(256, 64, 32, 2), (1152, 128, 128, 1), (1056, 1056, 32, 33), (96, 0, 32, 3), (768, 0, 128, 6), (512, 256, 128, 2)],
)
def test_scales_of_larger_groups_are_kept_once_with_the_bits_of_repeated_ones(
    library: Library, columns: int, group: int, rounded: int, sharing: int, bits: int
) -> None:
    """A group of 0 is a whole row. 130 rows are whole panels and a tile."""
    weight, x = random_weight(130, columns, group, bits), normal(70, columns, dtype=torch.bfloat16)
    repeated = quantized.in_groups(weight, rounded)
    kept, written = linear.packed(library, weight, None), linear.packed(library, repeated, None)
    assert kept.struct.group == written.struct.group == rounded
    assert kept.kept[1].numel() * sharing == written.kept[1].numel() == 9 * linear.TILE * columns // rounded
    for count in (1, 2, 3, 5, 70):
        assert torch.equal(kept(x[:count]), written(x[:count]))


NF4 = QuantFormat(bits=4, group=64, wide=True, codebook="nf4")
WIDE = [QuantFormat(bits=bits, group=group, wide=True) for bits in (8, 4) for group in (32, 64, 128, 0)]


@pytest.mark.parametrize(
    "format_", [QuantFormat(bits=8, group=128), QuantFormat(bits=4), *WIDE, MXFP4, NVFP4, NF4, replace(NF4, group=128)]
)
def test_the_bytes_that_are_counted_are_those_that_are_held(cpu_library: Library, format_: QuantFormat) -> None:
    """And 4 for each row; 96 rows are whole tiles."""
    weight = quantized.drawn(format_, 96, 512, torch.Generator().manual_seed(0))
    kept = {one.data_ptr(): one.nbytes for one in linear.packed(cpu_library, weight, None).kept}
    assert sum(kept.values()) == format_.packed_bytes(96, 512) + 4 * 96


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", list(UNIT))
@pytest.mark.parametrize(("rows", "columns", "group"), SHAPES)
def test_every_variant_gives_the_same_bits(
    cpu_library: Library, rows: int, columns: int, group: int, bits: int, dtype: torch.dtype
) -> None:
    """Sums of integers are exact, and those over groups have one order: also where products of 16 bits are largest."""
    weight, x = random_weight(rows, columns, group, bits), normal(9, columns, dtype=dtype)
    weight.values.view(-1)[: columns * 2] = -128 if bits == 8 else 255
    assert_same_in_every_variant(cpu_library, weight, x)


def assert_same_in_every_variant(cpu_library: Library, weight: QuantizedWeight, x: Tensor) -> None:
    x[0], x[1, ::2], x[2] = 1.0, -1.0, 0.0
    outs = [linear.packed(replace(cpu_library, isa=isa), weight, None)(x) for isa in variants(cpu_library.handle)]
    assert all(torch.equal(out, outs[0]) for out in outs)


# rows, columns, of e2m1 as above, of whole groups of both; of codebooks groups of all sizes
TABLES = pytest.mark.parametrize(
    ("format_", "rows", "columns"),
    [
        *((one, *shape) for one in (MXFP4, NVFP4) for shape in ((16, 32), (7, 64), (33, 96), (100, 160), (130, 2048))),
        *((one, *shape) for one in (MXFP4, NVFP4) for shape in ((1, 768), (64, 1056))),
        *((replace(NF4, group=group), rows, columns) for rows, columns, group in SHAPES),
        (replace(NF4, codebook="bnb-fp4"), 130, 512),
        (QuantFormat(bits=4, codebook="iq4"), 64, 256),
    ],
)


@TABLES
@pytest.mark.parametrize("dtype", list(UNIT))
def test_numbers_of_a_table_are_their_formula_in_every_batch(
    library: Library, rows: int, columns: int, format_: QuantFormat, dtype: torch.dtype
) -> None:
    """Scales of e2m1 are any that there are: those of e4m3 below 2^-6, too, and powers of two from end to end."""
    weight, bias, x = any_of_table(rows, columns, format_), normal(rows), normal(250, columns, dtype=dtype)
    packed = linear.packed(library, weight, bias)
    whole = packed(x)
    assert_close(whole, linear.rounded_product(weight, bias, x))
    for count in (1, 2, 3, 4, 7, 33):
        assert torch.equal(packed(x[:count]), whole[:count])
        assert torch.equal(packed(x[-count:]), whole[-count:])


@TABLES
@pytest.mark.parametrize("dtype", list(UNIT))
def test_numbers_of_a_table_have_the_same_bits_in_every_variant(
    cpu_library: Library, rows: int, columns: int, format_: QuantFormat, dtype: torch.dtype
) -> None:
    weight, x = any_of_table(rows, columns, format_), normal(9, columns, dtype=dtype)
    weight.values.view(-1)[: columns * 2] = 0x77 if format_.floating else 0xFF  # the largest, which few of fit 16 bits
    assert_same_in_every_variant(cpu_library, weight, x)


def any_of_table(rows: int, columns: int, format_: QuantFormat) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(rows + columns)
    weight = quantized.drawn(format_, rows, columns, generator)
    if not format_.floating:
        return weight
    low, high = (97, 158) if format_ == MXFP4 else (0, 0x7F)
    scales = torch.randint(low, high, weight.scales.shape, generator=generator)
    weight.scales.copy_(scales.to(torch.uint8).view(format_.scale_dtype))
    return weight


@pytest.mark.parametrize("format_", [MXFP4, NVFP4, replace(NF4, group=32)], ids=["mxfp4", "nvfp4", "nf4"])
@pytest.mark.parametrize(("rows", "columns"), [(2, 32), (70, 64), (256, 96)])
def test_numbers_of_a_table_behind_a_gate(library: Library, rows: int, columns: int, format_: QuantFormat) -> None:
    weight, bias = quantized.drawn(format_, rows, columns, torch.Generator().manual_seed(rows)), normal(rows)
    x = normal(9, columns)
    gate, up = linear.rounded_product(weight, bias, x).chunk(2, dim=1)
    out = linear.packed(library, weight, bias, gated=True)(x)
    torch.testing.assert_close(out.double(), torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exponent", [0, 1, 60, 126, 127, 200, 252, 254])
def test_powers_of_two_are_exact_at_both_ends(library: Library, exponent: int) -> None:
    weight = quantized.drawn(MXFP4, 40, 64, torch.Generator().manual_seed(exponent))
    weight.scales.copy_(torch.full(weight.scales.shape, exponent, dtype=torch.uint8).view(torch.float8_e8m0fnu))
    weight.units.fill_(2.0**-8 if exponent > 127 else 0.5)  # type: ignore[union-attr]
    x = normal(5, 64) / (1 if exponent < 250 else 1024)
    assert_close(linear.packed(library, weight, None)(x), linear.rounded_product(weight, None, x))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("rows", "columns"), [(2, 32), (70, 64), (256, 96)])
def test_a_gate_is_applied_before_rounding(library: Library, rows: int, columns: int, bits: int) -> None:
    weight, bias, x = random_weight(rows, columns, 32, bits), normal(rows), normal(9, columns)
    gate, up = linear.rounded_product(weight, bias, x).chunk(2, dim=1)
    out = linear.packed(library, weight, bias, gated=True)(x)
    torch.testing.assert_close(out.double(), torch.nn.functional.silu(gate) * up, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("group", "worst"), [(32, 0.006), (128, 0.008)])
def test_rounding_rows_costs_less_than_a_percent(library: Library, group: int, worst: float, bits: int) -> None:
    weight, x = random_weight(512, 768, group, bits), normal(64, 768)
    exact = x.double() @ quantized.dequantized(weight).double().T
    error = linear.packed(library, weight, None)(x).double() - exact
    assert error.norm() / exact.norm() < worst


def test_tiny_and_huge_scales_keep_their_precision(library: Library) -> None:
    for scale in (1e-12, 1e6):
        weight, x = random_weight(40, 64, 32, 8, scale=scale), normal(5, 64)
        assert_close(linear.packed(library, weight, None)(x), linear.rounded_product(weight, None, x))


def test_float16_rows_are_taken_too(library: Library) -> None:
    weight, x = random_weight(40, 64, 32, 8), normal(5, 64, dtype=torch.float16)
    packed = linear.packed(library, weight, None)
    assert torch.equal(packed(x), packed(x.float()).half())


@pytest.mark.parametrize("dtype", list(UNIT))
def test_infinity_and_nan_reach_only_their_own_rows(library: Library, dtype: torch.dtype) -> None:
    packed = linear.packed(library, random_weight(33, 64, 32, 8), None)
    x = normal(8, 64, dtype=dtype)
    clean = packed(x)
    x[3, 5], x[6, 63] = float("inf"), float("nan")
    out = packed(x)
    kept = torch.tensor([0, 1, 2, 4, 5, 7])
    assert torch.equal(out[kept], clean[kept])
    assert not out[3].isfinite().any()
    assert out[6].isnan().all()
    assert torch.equal(packed(torch.zeros(1, 64, dtype=dtype)), torch.zeros(1, 33, dtype=dtype))
