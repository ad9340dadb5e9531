"""AMX products with the tiles emulated by arrays: all but the instructions, on any processor with bfloat16 products."""

import ctypes

import pytest
import torch

from kvasir_runtime.kernels.cpu import build, linear
from kvasir_runtime.kernels.cpu.library import Library

SHAPES = [(16, 32), (112, 96), (100, 64), (7, 32), (200, 768)]


@pytest.fixture(scope="module")
def emulated(cpu_library: Library, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library of its own, whose processor claims to have AMX."""
    if not cpu_library.has("pack_bf16"):
        pytest.skip(f"{cpu_library.isa} has no bfloat16 products")
    target = tmp_path_factory.mktemp("amx") / "libkvasir.so"
    build.build(target, only=("linear",), flags=("-DKVASIR_AMX_EMULATED",))
    library = Library(isa=cpu_library.isa, handle=ctypes.CDLL(str(target)))
    library.start(2)
    return library


def test_it_is_used_after_its_results_were_compared(emulated):
    assert linear.use_amx(emulated) == "+amx"


@pytest.mark.parametrize(("outputs", "k"), SHAPES)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [16, 17, 32, 33, 63, 300])
def test_tiles_give_the_product(emulated, outputs, k, gated, rows):
    assert linear.use_amx(emulated) == "+amx"
    generator = torch.Generator().manual_seed(1)
    outputs += gated and outputs % 2
    weight, bias, x = (torch.randn(*n, generator=generator).bfloat16() for n in ((outputs, k), (outputs,), (rows, k)))
    out = linear.packed(emulated, weight, bias, gated=gated)(x)
    exact = x.double() @ weight.double().T + bias.double()
    if gated:
        gate, up = exact.chunk(2, dim=1)
        exact = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-4)


def test_few_rows_and_odd_widths_are_left_to_the_other_kernel(emulated):
    for rows, k in ((15, 64), (40, 33)):
        layer = linear.packed(emulated, torch.randn(50, k).bfloat16(), None)
        x = torch.randn(rows, k).bfloat16()
        assert linear.use_amx(emulated) == "+amx"
        out = layer(x)
        emulated.handle.kvasir_use_amx(0)
        assert torch.equal(layer(x), out)


def test_a_processor_without_it_is_not_asked(cpu_library):
    if cpu_library.handle.kvasir_amx():
        pytest.skip("this one has it")
    assert linear.use_amx(cpu_library) == ""
