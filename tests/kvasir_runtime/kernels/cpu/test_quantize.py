"""Four bits in C++ beside the search by torch's operations, whose formulas they are."""

import pytest
import torch

from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.cpu import quantize as cpu_quantize
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.quantize import reference
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight

FOUR = QuantFormat(bits=4)


def searched(library: Library, rows: torch.Tensor) -> QuantizedWeight:
    assert cpu_quantize.takes(library, rows, FOUR)
    return cpu_quantize.in_cpp(library)(rows, FOUR)


def off(weight: QuantizedWeight, rows: torch.Tensor) -> float:
    return float((quantized.dequantized(weight) - rows.float()).norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (16, 32), (17, 64), (200, 1056)])
def test_it_is_the_search_of_torch_but_for_rounding(
    variant: Library, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    rows = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 0.05 + 0.01).to(dtype)
    rows[:, ::40] *= 20
    rows[-1, :32] = 0.25
    rows[0, -32:] = 0
    found, wanted = searched(variant, rows), reference(rows, FOUR)
    assert off(found, rows) == pytest.approx(off(wanted, rows), rel=2e-3)
    assert float((quantized.numbers(found) == quantized.numbers(wanted)).float().mean()) > 0.995
    assert found.minima is not None
    assert wanted.minima is not None
    assert torch.allclose(found.scales.float().median(), wanted.scales.float().median(), rtol=1e-2)
    assert torch.allclose(found.minima.float().median(), wanted.minima.float().median(), rtol=1e-2)


def test_a_group_is_the_same_whatever_lies_beside_it(variant: Library) -> None:
    rows = torch.randn(70, 64, generator=torch.Generator().manual_seed(2))
    whole = searched(variant, rows)
    for first, count in ((0, 1), (1, 5), (37, 33)):
        part, same = searched(variant, rows[first : first + count]), whole.rows(first, count)
        assert torch.equal(part.values, same.values)
        assert torch.equal(part.scales, same.scales)
        assert part.minima is not None
        assert same.minima is not None
        assert torch.equal(part.minima, same.minima)


@pytest.mark.parametrize(
    ("format_", "dtype"),
    [
        (QuantFormat(bits=8), torch.float32),
        (QuantFormat(bits=4, group=16), torch.float32),
        (QuantFormat(bits=4, wide=True), torch.float32),
        (FOUR, torch.float16),
    ],
)
def test_others_are_left_to_torch(cpu_library: Library, format_: QuantFormat, dtype: torch.dtype) -> None:
    rows = torch.zeros(2, 64, dtype=dtype)
    assert not cpu_quantize.takes(cpu_library, rows, format_)
