"""Memory of the host: where it begins, and that it is returned."""

import numpy as np
import pytest
import torch

from kvasir_runtime.kernels import host_memory
from kvasir_runtime.runner.startup import host_resources


@pytest.mark.parametrize(
    ("num_bytes", "border"), [(100, 64), ((2 << 20) - 1, 64), (2 << 20, 2 << 20), (5_000_001, 2 << 20)]
)
def test_room_begins_at_a_border_and_can_be_written_to_its_end(num_bytes: int, border: int) -> None:
    room = host_memory.allocate(num_bytes)
    assert (room.shape, room.dtype, room.data_ptr() % border) == ((num_bytes,), torch.uint8, 0)
    assert int(room.fill_(7)[-1]) == 7


def test_large_room_is_given_back_with_the_last_view_of_it() -> None:
    before = host_resources.resident_bytes()
    for _ in range(8):
        part = host_memory.allocate(32 << 20).fill_(1)[5:9]
        assert part.tolist() == [1] * 4
    assert host_resources.resident_bytes() - before < 100 << 20


def test_zeros_take_memory_where_they_are_written_alone() -> None:
    table = host_memory.zeros((256, 131_073), np.int32)
    before = host_resources.resident_bytes()
    table[:, :20] = 1
    assert host_resources.resident_bytes() - before < 16 << 20  # 134 MB in huge pages
    assert (table[:, :20].all(), table[::7, 20:1000].any(), int(table[-1, -1])) == (True, False, 0)


def test_zeros_of_no_rows_are_an_empty_table() -> None:
    assert host_memory.zeros((2, 0, 5), np.int64).shape == (2, 0, 5)
