"""Frames between nodes: whole, bounded before they are read, and in their order."""

import os
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvasir_runtime.nodes.link import WITH_HEAD_BYTES, Link, LinkError


@pytest.fixture
def pair() -> Iterator[tuple[Link, socket.socket]]:
    """A link, and the other end as a plain socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
    link = Link(connection, "node 1")
    with other:
        yield link, other
        link.close()


@pytest.mark.parametrize("size", [0, 1, WITH_HEAD_BYTES, WITH_HEAD_BYTES + 1])
def test_frames_arrive_whole_and_in_order(pair: tuple[Link, socket.socket], size: int) -> None:
    link, other = pair
    there, message = Link(other, "node 0"), bytes(index % 251 for index in range(size))
    there.send(message)
    there.send(b"next")
    assert link.receive(size) == message
    room = bytearray(4)
    link.receive_into(memoryview(room))
    assert room == b"next"


def test_a_frame_that_is_longer_than_may_come_is_not_read(pair: tuple[Link, socket.socket]) -> None:
    link, other = pair
    other.sendall(struct.pack("<IQ", 0, 1 << 60))
    with pytest.raises(LinkError, match=r"^node 1 sent 1,152,921,504,606,846,976 bytes where at most 64 may come$"):
        link.receive(64)


@pytest.mark.parametrize("size", [0, 3, 5])
def test_a_frame_of_another_length_is_not_taken_for_a_part(pair: tuple[Link, socket.socket], size: int) -> None:
    link, other = pair
    other.sendall(struct.pack("<IQ", 0, size) + bytes(size))
    with pytest.raises(LinkError, match=f"^node 1 sent {size} bytes where 4 must come$"):
        link.receive_into(memoryview(bytearray(4)))


def test_a_frame_that_was_left_out_is_noticed(pair: tuple[Link, socket.socket]) -> None:
    link, other = pair
    other.sendall(struct.pack("<IQ", 1, 0))
    with pytest.raises(LinkError, match=r"^node 1 sent frame 1 where frame 0 must come$"):
        link.receive(64)


def test_what_has_come_is_read_when_the_time_is_over(pair: tuple[Link, socket.socket]) -> None:
    """The process may have been kept from running for all of it."""
    link, other = pair
    Link(other, "node 0").send(b"an answer")
    assert link.has_bytes(60.0)
    assert link.receive(64, within_s=0.0) == b"an answer"
    with pytest.raises(TimeoutError, match=r"^node 1 did not send a whole frame in time$"):
        link.receive(64, within_s=0.0)


def test_half_a_frame_ends_with_its_sender_or_its_time(pair: tuple[Link, socket.socket]) -> None:
    link, other = pair
    other.sendall(struct.pack("<IQ", 0, 8) + b"half")
    with pytest.raises(TimeoutError):
        link.receive(64, within_s=0.05)
    other.close()
    with pytest.raises(ConnectionError, match="node 1 has closed the connection"):
        link.receive(64)


def test_a_part_of_a_file_is_a_frame(pair: tuple[Link, socket.socket], tmp_path: Path) -> None:
    link, other = pair
    there, content = Link(other, "node 0"), bytes(index % 251 for index in range(3_000_000))
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file, ThreadPoolExecutor(1) as thread:
        sent = thread.submit(there.send_file, file.fileno(), 1000, 2_000_000, within_s=60.0)
        room = bytearray(2_000_000)
        link.receive_into(memoryview(room), within_s=60.0)
        sent.result()
    assert room == content[1000:2_001_000]
    there.send(b"next")
    assert link.receive(4) == b"next"


def test_a_file_that_is_shorter_than_its_frame_is_an_error(pair: tuple[Link, socket.socket], tmp_path: Path) -> None:
    _, other = pair
    (tmp_path / "file").write_bytes(b"short")
    with (tmp_path / "file").open("rb") as file, pytest.raises(EOFError):
        Link(other, "node 0").send_file(file.fileno(), 0, 6, within_s=60.0)


def test_a_file_is_not_sent_for_longer_than_it_may_take(pair: tuple[Link, socket.socket], tmp_path: Path) -> None:
    """The other end reads nothing, so buffers fill."""
    _, other = pair
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 1 << 30)
    with (tmp_path / "file").open("rb") as file, pytest.raises(TimeoutError):
        Link(other, "node 0").send_file(file.fileno(), 0, 1 << 30, within_s=0.05)


def test_a_frame_that_does_not_come_is_not_awaited_for_ever(pair: tuple[Link, socket.socket]) -> None:
    link, other = pair
    other.sendall(struct.pack("<IQ", 0, 4) + b"abc")
    with pytest.raises(TimeoutError, match="node 1 did not send a whole frame in time"):
        link.receive_into(memoryview(bytearray(4)), within_s=0.05)


def test_a_closed_link_says_so_to_who_looks(pair: tuple[Link, socket.socket]) -> None:
    """Another thread may have closed it between two looks."""
    link, _ = pair
    link.close()
    with pytest.raises(OSError, match=r"the connection to node 1 was closed"):
        link.has_bytes(0.0)
