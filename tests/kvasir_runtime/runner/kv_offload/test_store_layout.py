"""Sizes that stay within the limit, and bytes that are read as they were written or not at all."""

import dataclasses

import pytest

from kvasir_runtime.runner.kv_offload import store_layout
from kvasir_runtime.runner.kv_offload.store_layout import EMPTY, KEY_BYTES, StoreHeader

HEADER = StoreHeader(block_bytes=6000, num_slots=7, epoch=3, changes=9, salt=b"s" * 32)
KEY = bytes(range(1, KEY_BYTES + 1))


@pytest.mark.parametrize(
    ("limit_bytes", "block_bytes", "want"),
    [(4096 * 3, 4096, 1), (4096 * 3 - 1, 4096, 0), (0, 100, 0), (4096 * 10, 4097, 4), (1 << 30, 393_216, 2730)],
)
def test_a_file_stays_within_its_limit(limit_bytes, block_bytes, want):
    slots = store_layout.num_slots(limit_bytes, block_bytes)
    assert slots == want
    if slots:
        sizes = [
            dataclasses.replace(HEADER, block_bytes=block_bytes, num_slots=n).file_bytes for n in (slots, slots + 1)
        ]
        assert sizes[0] <= limit_bytes < sizes[1]


def test_a_header_is_read_as_written():
    encoded = HEADER.encoded()
    assert len(encoded) == store_layout.HEADER_BYTES
    assert store_layout.decoded(encoded + bytes(100)) == HEADER
    assert HEADER.slots_at == 8192
    assert HEADER.slot_at(2) == 8192 + 2 * 8192


@pytest.mark.parametrize("place", range(store_layout.HEADER_BYTES))
def test_a_header_with_a_wrong_byte_is_none(place):
    damaged = bytearray(HEADER.encoded())
    damaged[place] ^= 0x20
    assert store_layout.decoded(bytes(damaged)) is None
    assert store_layout.decoded(HEADER.encoded()[:place]) is None


def test_entries_come_in_the_order_in_which_they_were_written():
    table = store_layout.entry(KEY, 5, 12) + store_layout.entry(EMPTY, 0, 10) + store_layout.entry(KEY, 6, 3)
    assert store_layout.entries_since(table, 9) == [(1, 10, EMPTY, 0), (0, 12, KEY, 5)]
    assert store_layout.entries_since(table, 12) == []
    assert store_layout.entries_since(bytes(640), 0) == []


@pytest.mark.parametrize("place", [0, KEY_BYTES - 1, KEY_BYTES, KEY_BYTES + 4, KEY_BYTES + 12])
def test_a_damaged_entry_is_empty(place):
    damaged = bytearray(store_layout.entry(KEY, 5, 12))
    damaged[place] ^= 1
    assert [entry[2] for entry in store_layout.entries_since(bytes(damaged), 1)] == [EMPTY]
