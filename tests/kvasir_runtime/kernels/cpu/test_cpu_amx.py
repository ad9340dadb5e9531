"""AMX products, by the processor or with tiles emulated by arrays: all but the instructions, wherever bfloat16 is."""

import pytest
import torch

from fakes.cpu_variants import EMULATED_AMX
from kvasir_runtime.kernels import quantize
from kvasir_runtime.kernels.cpu import linear
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.quantized import MXFP4, NVFP4, QuantFormat, dequantized, drawn

SHAPES = [(16, 32), (112, 96), (100, 64), (7, 32), (200, 768)]
FLOAT32_UNIT, BFLOAT16_UNIT = 2**-24, 2**-8
"""Largest relative error of one rounding."""


@pytest.fixture(params=[EMULATED_AMX, "processor_amx"])
def library(request: pytest.FixtureRequest) -> Library:
    """With AMX in use."""
    found: Library = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(("outputs", "k"), SHAPES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [16, 17, 32, 33, 63, 300])
def test_tiles_give_the_product(library: Library, outputs: int, k: int, gated: bool, rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    outputs += gated and outputs % 2
    weight, bias, x = (torch.randn(*n, generator=generator).bfloat16() for n in ((outputs, k), (outputs,), (rows, k)))
    out = linear.packed(library, weight, bias, gated=gated)(x)
    exact = x.double() @ weight.double().T + bias.double()
    if gated:
        gate, up = exact.chunk(2, dim=1)
        exact = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-4)


def test_few_rows_and_odd_widths_are_left_to_the_other_kernel(library: Library) -> None:
    without = Library(isa=library.isa, handle=library.handle)
    for rows, k in ((15, 64), (40, 33)):
        weight, x = torch.randn(50, k).bfloat16(), torch.randn(rows, k).bfloat16()
        assert torch.equal(linear.packed(library, weight, None)(x), linear.packed(without, weight, None)(x))


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("k", [96, 512])
def test_of_grouped_weights_each_is_computed_as_alone(library: Library, bits: int, k: int) -> None:
    """AVX-512 computes those with few rows, tiles those with many; rows are rounded by one thread or by all."""
    generator, counts = torch.Generator().manual_seed(7), (3, 70, 0, 15, 64, 16)
    source = torch.randn(len(counts), 112, k, generator=generator).bfloat16()
    weights = [one if bits == 16 else quantize.reference(one, QuantFormat(bits=bits)) for one in source]
    packed = [linear.packed(library, weight, None) for weight in weights]
    x, first = torch.randn(sum(counts), k, generator=generator).bfloat16(), torch.tensor((0, *counts)).cumsum(0)
    alone = torch.cat([one(part) for one, part in zip(packed, x.split(counts), strict=True)])
    assert torch.equal(linear.grouped_product(library, packed)(x, first), alone)


BY_ROW = [QuantFormat(bits=8, group=0), QuantFormat(bits=4, group=0)]


@pytest.mark.parametrize("format_", [QuantFormat(bits=8), QuantFormat(bits=4), *BY_ROW, MXFP4, NVFP4])
@pytest.mark.parametrize(("outputs", "k"), [(16, 32), (112, 96), (100, 64), (200, 768)])
@pytest.mark.parametrize("rows", [64, 65, 95, 300])
def test_quantized_weights_are_rounded_to_bfloat16_and_rows_are_not(
    library: Library, format_: QuantFormat, outputs: int, k: int, rows: int
) -> None:
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(rows, k, generator=generator).bfloat16(), drawn(format_, outputs, k, generator)
    exact, magnitude = dequantized(weight).double(), dequantized(weight).double().abs()
    wanted = x.double() @ exact.T
    out = linear.packed(library, weight, None)(x).double()
    bound = BFLOAT16_UNIT * (x.double().abs() @ magnitude.T + wanted.abs())
    assert ((out - wanted).abs() <= bound).all()
    error = (out - wanted).norm() / wanted.norm()
    assert error < 0.004, "half of what rounding the rows to 8 bits costs"


@pytest.mark.parametrize("bits", [8, 4])
def test_gated_quantized_weights_and_biases(library: Library, bits: int) -> None:
    generator = torch.Generator().manual_seed(6)
    source, bias, x = (torch.randn(*n, generator=generator).bfloat16() for n in ((90, 96), (90,), (70, 96)))
    weight = quantize.reference(source, QuantFormat(bits=bits))
    gate, up = (x.double() @ dequantized(weight).double().T + bias.double()).chunk(2, dim=1)
    wanted = torch.nn.functional.silu(gate) * up
    out = linear.packed(library, weight, bias, gated=True)(x).double()
    assert (out - wanted).norm() / wanted.norm() < 0.006


@pytest.mark.parametrize("bits", [8, 4])
def test_few_rows_of_a_quantized_weight_are_left_to_the_other_kernel(library: Library, bits: int) -> None:
    without = Library(isa=library.isa, handle=library.handle)
    weight = quantize.reference(torch.randn(50, 64).bfloat16(), QuantFormat(bits=bits))
    x = torch.randn(64, 64).bfloat16()
    one, other = (linear.packed(which, weight, None) for which in (library, without))
    assert torch.equal(one(x[:63]), other(x[:63]))
    assert not torch.equal(one(x), other(x))
    assert torch.equal(one(x.float()), other(x.float())), "float32 rows are rounded to 8 bits in any case"


@pytest.mark.parametrize(("outputs", "k"), [(3584, 768), (768, 3584), (100, 8192)])
def test_a_row_of_any_batch_is_as_near_as_two_orders_of_a_sum_can_be(library: Library, outputs: int, k: int) -> None:
    """Products of bfloat16 are exact in float32, so k additions err by k units of their magnitude, in either order, and
    each result is rounded once."""
    generator = torch.Generator().manual_seed(3)
    weight, x = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (outputs, 200))
    layer = linear.packed(library, weight, None)
    alone = torch.cat([layer(row) for row in x.split(1)]).double()
    sums = k * FLOAT32_UNIT / (1 - k * FLOAT32_UNIT) * (x.double().abs() @ weight.double().abs().T)
    for rows in (2, 15, 16, 17, 33, 200):
        out = layer(x[:rows]).double()
        bound = 2 * (sums[:rows] + BFLOAT16_UNIT * torch.maximum(out.abs(), alone[:rows].abs()))
        assert ((out - alone[:rows]).abs() <= bound).all()
        if rows < 16:
            assert torch.equal(out, alone[:rows])


def test_a_weight_packed_without_it_has_the_same_bits_in_every_batch(library: Library) -> None:
    """What other weights of the process use does not matter."""
    weight, x = torch.randn(112, 768).bfloat16(), torch.randn(40, 768).bfloat16()
    layer = linear.packed(Library(isa=library.isa, handle=library.handle), weight, None)
    alone = torch.cat([layer(row) for row in x.split(1)])
    linear.packed(library, weight, None)(x)
    assert torch.equal(layer(x), alone)


def test_a_processor_without_it_is_not_asked(cpu_library: Library) -> None:
    if cpu_library.isa == linear.AMX_VARIANT and cpu_library.handle.kvasir_amx():
        pytest.skip("this one has it")
    assert linear.with_amx(cpu_library) == (cpu_library, "")
