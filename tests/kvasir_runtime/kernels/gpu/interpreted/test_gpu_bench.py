"""The benchmark of the kernels calls them as they want to be called: every cell once, small, untimed."""

import pytest
import torch

from fakes import triton_device

DEVICE = triton_device.device()

# ruff: noqa: E402 -- behind the question where it can run
from bench.gpu import crossover
from bench.gpu.kernels import SMALL, Cell, cells
from kvasir_runtime.kernels.backends import ops_for


@pytest.mark.parametrize("cell", list(cells(SMALL, ops_for(DEVICE), DEVICE, torch.float32)), ids=lambda cell: cell.name)
def test_cell_can_be_called(cell: Cell) -> None:
    assert cell.moved_bytes > 0 or cell.flops > 0
    cell.make()()


@pytest.mark.parametrize("kind", crossover.KINDS)
def test_every_way_of_a_product_can_be_called(kind: str) -> None:
    made = crossover.calls(64, 64, kind, ops_for(DEVICE), DEVICE, torch.float16, copies=2)
    assert {name: len(layers) for name, layers in made.items()} == {
        crossover.SERVED: 2,
        "unpacked in tiles": 2,
        "unpacked whole": 2,
    }
    for layers in made.values():
        assert layers[0](torch.ones(3, 64, dtype=torch.float16, device=DEVICE)).shape == (3, 64)
