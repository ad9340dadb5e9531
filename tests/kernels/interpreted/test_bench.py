"""The benchmark of the kernels calls them as they want to be called: every cell once, small, untimed."""

import pytest
import torch

from fakes import triton_device

DEVICE = triton_device.device()

from bench.gpu_kernels import Cell, Scale, cells, main  # noqa: E402 -- behind the question where it can run

SMALL = Scale(
    heads=4, kv_heads=2, head=16, hidden=64, intermediate=48, vocab=300, block_size=4,
    decode=((2, 9),), prefill=(6,), tokens=(1, 3), rows=(2,),
)  # fmt: skip


@pytest.mark.parametrize("cell", list(cells(SMALL, DEVICE, torch.float32)), ids=lambda cell: cell.name)
def test_cell_can_be_called(cell: Cell) -> None:
    assert (cell.moved_bytes > 0) != (cell.flops > 0)
    cell.make()()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card to measure")
def test_without_a_card_it_says_so() -> None:
    with pytest.raises(SystemExit, match="torch finds none"):
        main()
