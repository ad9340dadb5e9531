"""Linear layers in C++: every shape against float64, and the same bits whatever the batch."""

import ctypes

import pytest
import torch
from torch import Tensor

from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.cpu import linear, structs
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.quantized import MXFP4, NVFP4, QuantFormat

SHAPES = [(1, 1), (16, 2), (17, 3), (64, 64), (100, 33), (7, 5), (96, 48), (130, 4100), (3584, 768)]
GATED = [(2, 4), (34, 10), (128, 64), (1000, 96)]
ROWS = (2, 7, 13, 33, 200, 500)


@pytest.fixture
def library(variant: Library) -> Library:
    """Each variant that this processor runs."""
    return variant


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def with_residual(packed: linear.Packed, x: Tensor, residual: Tensor) -> Tensor:
    out = torch.empty_like(residual)
    pointers = {"x": x.data_ptr(), "out": out.data_ptr(), "residual": residual.data_ptr()}
    product = linear.ProductStruct(rows=x.shape[0], type=structs.TYPES[x.dtype], **pointers)
    packed._product(ctypes.byref(packed.struct), ctypes.byref(product))
    return out


def assert_rounded_once(out: Tensor, exact: Tensor, magnitude: Tensor) -> None:
    """Half a unit of the last place, and the error of a float32 sum."""
    error = (out.double() - exact).abs()
    assert (error <= exact.abs() * 2**-8 + magnitude * 2**-19 + 1e-30).all()


@pytest.mark.parametrize(("outputs", "k"), SHAPES)
def test_it_is_the_product_rounded_once(library: Library, outputs: int, k: int) -> None:
    weight, bias, x, residual = normal(outputs, k), normal(outputs, seed=1), normal(9, k, seed=2), normal(9, outputs)
    magnitude = x.double().abs() @ weight.double().abs().T + 9
    exact = x.double() @ weight.double().T
    plain = linear.packed(library, weight.clone(), None)
    assert_rounded_once(plain(x), exact, magnitude)
    biased = linear.packed(library, weight.clone(), bias.clone())
    assert_rounded_once(biased(x), exact + bias.double(), magnitude)
    assert_rounded_once(with_residual(biased, x, residual), exact + bias.double() + residual.double(), magnitude)


@pytest.mark.parametrize(("outputs", "k"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_row_has_the_same_bits_in_every_batch(library: Library, outputs: int, k: int, threads: int) -> None:
    packed = linear.packed(library, normal(outputs, k), normal(outputs, seed=1))
    x = normal(max(ROWS), k, seed=2)
    alone = torch.cat([packed(row) for row in x[:40].split(1)])
    library.start(threads)
    try:
        for rows in ROWS:
            out = packed(x[:rows])
            assert torch.equal(out[:40], alone[:rows])
            assert torch.equal(packed(x[rows - 2 : rows]), out[-2:])
    finally:
        library.start(2)


@pytest.mark.parametrize(("outputs", "k"), GATED)
def test_a_gate_is_applied_before_rounding(library: Library, outputs: int, k: int) -> None:
    weight, bias, x = normal(outputs, k), normal(outputs, seed=1), normal(9, k, seed=2)
    gate, up = (x.double() @ weight.double().T + bias.double()).chunk(2, dim=1)
    out = linear.packed(library, weight, bias, gated=True)(x)
    assert out.shape == (9, outputs // 2)
    torch.testing.assert_close(out.double(), torch.nn.functional.silu(gate) * up, rtol=2**-8, atol=2e-5)


@pytest.mark.parametrize(("outputs", "k"), SHAPES)
def test_rows_come_back_as_they_were(library: Library, outputs: int, k: int) -> None:
    weight = normal(outputs, k)
    packed = linear.packed(library, weight.clone(), None)
    ids = torch.tensor([0, outputs - 1, outputs // 2, 0])
    assert torch.equal(packed.rows(ids), weight[ids])


def test_infinity_and_nan_reach_only_their_own_rows(library: Library) -> None:
    packed = linear.packed(library, normal(33, 40), None)
    x = normal(8, 40)
    clean = packed(x)
    x[3, 5], x[6, 39] = float("inf"), float("nan")
    out = packed(x)
    kept = torch.tensor([0, 1, 2, 4, 5, 7])
    assert torch.equal(out[kept], clean[kept])
    assert not out[3].isfinite().any()
    assert out[6].isnan().all()


@pytest.mark.parametrize("name", ["LinearStruct", "ProductStruct", "GroupedStruct"])
def test_structs_are_as_large_as_those_of_the_library(probes: Library, name: str) -> None:
    size = getattr(probes.handle, f"kvasir_sizeof_{name.removesuffix('Struct')}")
    assert ctypes.sizeof(getattr(linear, name)) == size()


@pytest.mark.parametrize("format_", [None, QuantFormat(bits=8), QuantFormat(bits=4), MXFP4, NVFP4])
@pytest.mark.parametrize(("k", "gated"), [(96, False), (96, True), (768, True)])
def test_of_grouped_weights_each_is_computed_as_alone(
    library: Library, format_: QuantFormat | None, k: int, gated: bool
) -> None:
    """Some have no rows, some one, some more than a block; rows are prepared by each thread, or by all together."""
    for counts in ((0, 1, 0, 3), (7, 0, 250, 1, 40, 0)):
        generator = torch.Generator().manual_seed(1)
        weights = [
            normal(70, k, seed=seed) if format_ is None else quantized.drawn(format_, 70, k, generator)
            for seed in range(len(counts))
        ]
        packed = [linear.packed(library, weight, None, gated=gated) for weight in weights]
        x, first = normal(sum(counts), k), torch.tensor((0, *counts)).cumsum(0)
        alone = torch.cat([one(part) for one, part in zip(packed, x.split(counts), strict=True)])
        assert torch.equal(linear.grouped_product(library, packed)(x, first), alone)


def test_weights_that_are_packed_together_are_those_packed_alone(library: Library) -> None:
    weights, x = [normal(34, 10, seed=seed) for seed in range(3)], normal(5, 10)
    for gated in (False, True):
        together = linear.packed_together(library, weights, (None,) * len(weights), gated=gated)
        for packed, weight in zip(together, weights, strict=True):
            assert torch.equal(packed(x), linear.packed(library, weight, None, gated=gated)(x))
        places = {packed.kept[0].untyped_storage().data_ptr() for packed in together}
        assert len(places) == 1
