"""The calls on the file: whole, or with a reason why not."""

import os
import time

import pytest

from kvasir_runtime.runner.kv_offload import store_file
from kvasir_runtime.runner.kv_offload.store_file import LockBusyError
from kvasir_runtime.runner.kv_offload.store_layout import SALT_BYTES, StoreHeader, decoded

HEADER = StoreHeader(block_bytes=5000, num_slots=3, epoch=1, changes=0, salt=bytes(range(SALT_BYTES)))


@pytest.fixture
def file(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield descriptor
    os.close(descriptor)


def test_a_file_is_made_with_its_header_and_empty_slots(file):
    os.pwrite(file, b"what was there before", 10_000)
    store_file.make(file, HEADER)
    assert decoded(os.pread(file, 4096, 0)) == HEADER
    assert os.fstat(file).st_size == HEADER.file_bytes
    assert not any(os.pread(file, HEADER.file_bytes, 4096))


def test_what_is_written_is_read(file):
    store_file.write(file, 5000, b"content" * 1000)
    place = bytearray(7000)
    assert store_file.read(file, 5000, memoryview(place))
    assert bytes(place) == b"content" * 1000


def test_a_place_behind_the_end_is_not_read(file):
    store_file.write(file, 0, b"short")
    assert not store_file.read(file, 0, memoryview(bytearray(6)))


def test_a_file_that_cannot_be_read_is_no_error(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert not store_file.read(descriptor, 0, memoryview(bytearray(6)))
    os.close(descriptor)


def test_calls_go_on_where_the_system_stopped(file, monkeypatch):
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda to, content, at: pwrite(to, content[:3], at))
    monkeypatch.setattr(os, "preadv", lambda of, places, at: preadv(of, [places[0][:2]], at))
    store_file.write(file, 1, b"0123456789")
    place = bytearray(10)
    assert store_file.read(file, 1, memoryview(place))
    assert bytes(place) == b"0123456789"


def test_a_lock_is_waited_for_a_moment_and_taken_once_it_is_given_up(file, tmp_path):
    other = os.open(tmp_path / "file", os.O_RDWR)
    store_file.lock(other, 0.0)
    before = time.monotonic()
    with pytest.raises(LockBusyError, match="another process holds its lock"):
        store_file.lock(file, 0.02)
    assert time.monotonic() - before >= 0.02
    store_file.unlock(other)
    store_file.lock(file, 0.0)
    os.close(other)
