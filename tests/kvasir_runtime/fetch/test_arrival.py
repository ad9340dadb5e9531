"""A shard whose beginning is no header is fetched whole: nothing is loaded of it before, or kept for what it claims."""

import struct
from contextlib import contextmanager

import pytest

from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.model_files import RemoteFile, Transfer

NAME, SIZE, PIECE = "model.safetensors", 1 << 40, 1 << 16


@pytest.mark.parametrize(
    ("length", "size", "taken"),
    [(100_000_001, SIZE, 1), ((1 << 64) - 1, SIZE, 1), (PIECE + 1, PIECE, 1), (2 * PIECE, SIZE, 3)],
)
def test_pieces_are_taken_as_far_as_a_header_may_be(tmp_path, length, size, taken):
    pieces, begun = [], []

    def come():
        for number in range(5):
            pieces.append(number)
            yield struct.pack("<Q", length) + bytes(PIECE - 8) if number == 0 else bytes(PIECE)

    @contextmanager
    def opened(offset):
        yield Transfer(start=offset, pieces=come())

    (tmp_path / "config.json").write_bytes(b"{}")
    shard = RemoteFile(name=NAME, size=size, opened=opened, checksum=lambda: None)
    arrival = Arrival(begun.append)
    arrival.begun(tmp_path, ["config.json", NAME], [shard], lambda file: tmp_path / f"{file.name}.part")
    assert len(pieces) == taken
    assert len(begun) == (taken > 1)
