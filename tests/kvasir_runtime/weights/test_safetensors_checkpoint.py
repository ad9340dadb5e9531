"""Headers that were made to break what reads them: one line that names the file, and no memory for what they claim."""

import json
import struct
import tracemalloc
from pathlib import Path

import pytest

from kvasir_runtime.arriving import ArrivingFolder, Shards
from kvasir_runtime.errors import ModelError
from kvasir_runtime.weights import safetensors_checkpoint

NAME = "model.safetensors"
MOST_TIMES = 8
"""Of a header's own bytes, besides the first MiB."""


def _header(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def _entry(shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


def _tensors(**entries: dict[str, object]) -> bytes:
    return _header(json.dumps(entries).encode())


UNREADABLE = {
    "empty": b"",
    "length beyond 64 bits of a size": _header(b"{}", (1 << 64) - 1),
    "length beyond the limit": _header(b"{}", 100_000_001),
    "length beyond the file": _header(b"{}", 5_000),
    "garbage": _header(b"\xff\xfe garbage"),
    "name that is no text": _header(b'{"\xff": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'),
    "deep list": _header(b"[" * 200_000),
    "deep entry": _header(b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "list": _header(b"[]"),
    "negative shape": _tensors(a=_entry([-2, -2], 0, 16)),
    "shape beyond 64 bits": _tensors(a=_entry([1 << 70], 0, 16)),
    "many dimensions": _tensors(a=_entry([1 << 60] * 200_000, 0, 16)),
    "offset of many digits": _tensors(a=_entry([4], 0, 10**4000)),
    "offset beyond the file": _tensors(a=_entry([1 << 20], 0, 4 << 20)),
    "negative offset": _tensors(a=_entry([4], -16, 0)),
    "offsets in reverse": _tensors(a=_entry([4], 16, 0)),
    "overlap": _tensors(a=_entry([4], 0, 16), b=_entry([2], 8, 16)),
}
UNTRUE = {
    "huge shape": _tensors(a=_entry([1 << 40, 1 << 40], 0, 16)),
    "shape of other bytes": _tensors(a=_entry([3], 0, 16)),
}


def _whole(folder: Path, header: bytes) -> None:
    (folder / NAME).write_bytes(header + bytes(16) if header else header)


def _refused(read, header: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=f"{NAME} is truncated or damaged") as caught:
            read()
        assert len(str(caught.value)) < 500
        assert tracemalloc.get_traced_memory()[1] < (1 << 20) + MOST_TIMES * len(header)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("header", (UNREADABLE | UNTRUE).values(), ids=UNREADABLE | UNTRUE)
def test_hostile_header_of_a_whole_file_is_refused(tmp_path, header):
    _whole(tmp_path, header)
    _refused(lambda: safetensors_checkpoint.stored(tmp_path / NAME), header)


@pytest.mark.parametrize("header", (UNREADABLE | UNTRUE).values(), ids=UNREADABLE | UNTRUE)
def test_hostile_header_of_a_file_that_comes_is_refused(tmp_path, header):
    folder = ArrivingFolder(tmp_path, Shards(headers={NAME: header}, sizes={NAME: len(header) + 16}))
    _refused(lambda: safetensors_checkpoint.stored(folder.path / NAME), header)


@pytest.mark.parametrize("header", UNREADABLE.values(), ids=UNREADABLE)
def test_numbers_of_a_hostile_header_are_not_counted(tmp_path, header):
    _whole(tmp_path, header)
    _refused(lambda: safetensors_checkpoint.totals(tmp_path), header)


def test_tensors_side_by_side_are_read_while_they_come(tmp_path):
    header = _tensors(a=_entry([2], 0, 8), b=_entry([2], 8, 16))
    folder = ArrivingFolder(tmp_path, Shards(headers={NAME: header}, sizes={NAME: len(header) + 16}))
    assert [one.name for one in safetensors_checkpoint.stored(folder.path / NAME)] == ["a", "b"]
