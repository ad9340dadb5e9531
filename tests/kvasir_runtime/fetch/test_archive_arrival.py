"""From when on a checkpoint that is unpacked may be loaded, by the bytes that are there."""

import struct

import pytest

from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError
from kvasir_runtime.fetch import archive_arrival
from kvasir_runtime.fetch.archive_arrival import ArchiveArrival
from kvasir_runtime.fetch.arrival import Arrival

HEADER = struct.pack("<Q", 20) + b"{}".ljust(20)
SIZE = len(HEADER) + 100


@pytest.fixture
def begun():
    return []


@pytest.fixture
def arrival(begun):
    return Arrival(begun.append)


def test_a_header_may_come_in_pieces(tmp_path, begun, arrival):
    (tmp_path / "config.json").write_bytes(b"{}")
    shard, found = tmp_path / "model.safetensors", ArchiveArrival(arrival)
    for length in (4, 8, 27):
        shard.write_bytes(HEADER[:length])
        found.grown(shard, SIZE)
        assert begun == []
    shard.write_bytes(HEADER)
    found.grown(shard, SIZE)
    found.grown(shard, SIZE)
    (view,) = begun
    assert (view / "model.safetensors").read_bytes() == HEADER
    assert (view / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize("header", [struct.pack("<Q", 2**62), struct.pack("<Q", SIZE + 1), bytes(3)])
def test_what_is_no_header_is_not_awaited(tmp_path, begun, arrival, header):
    (tmp_path / "config.json").write_bytes(b"{}")
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(header + bytes(100))
    ArchiveArrival(arrival).grown(shard, len(header) + 100 if len(header) > 8 else 4)
    assert begun == []


@pytest.mark.parametrize("index", [b"{", b"[]", b'{"weight_map": 3}', b"{}"])
def test_an_index_that_is_none_is_left_to_who_loads(tmp_path, begun, arrival, index):
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(HEADER)
    found = ArchiveArrival(arrival)
    found.grown(shard, SIZE)
    found.compared(tmp_path)
    assert begun == []


def test_an_index_is_read_once(tmp_path, begun, arrival, monkeypatch):
    read = []
    monkeypatch.setattr(
        archive_arrival, "shards", lambda folder: read.append(folder) or {"1.safetensors", "2.safetensors"}
    )
    (tmp_path / "config.json").write_bytes(b"{}")
    found = ArchiveArrival(arrival)
    for name in ("1.safetensors", "2.safetensors"):
        (tmp_path / name).write_bytes(HEADER)
        found.grown(tmp_path / name, SIZE)
    assert len(begun) == len(read) == 1


def test_a_shard_that_a_layer_removes_is_not_awaited(tmp_path, begun, arrival):
    old, shard = tmp_path / "old.safetensors", tmp_path / "model.safetensors"
    found = ArchiveArrival(arrival)
    old.write_bytes(HEADER)
    found.grown(old, SIZE)
    old.unlink()
    found.removed(old)
    (tmp_path / "config.json").write_bytes(b"{}")
    shard.write_bytes(HEADER)
    found.grown(shard, SIZE)
    (view,) = begun
    assert arriving.size(view / "model.safetensors") == SIZE
    assert arriving.is_here(view / "old.safetensors")


def test_what_is_unpacked_twice_is_void(tmp_path, begun, arrival):
    (tmp_path / "config.json").write_bytes(b"{}")
    shard, found = tmp_path / "model.safetensors", ArchiveArrival(arrival)
    shard.write_bytes(HEADER)
    found.grown(shard, SIZE)
    found.given_up()
    found.compared(tmp_path)
    with pytest.raises(ModelError):
        arriving.confirm(begun[0])
