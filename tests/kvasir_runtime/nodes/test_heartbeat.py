"""A node that ends says why; one that is gone, or says nothing, is noticed by the others."""

import queue
import socket
from collections.abc import Iterator

import pytest

from kvasir_runtime.nodes.heartbeat import LOOK_S, MOST_SILENT_LOOKS, NodeHeartbeat
from kvasir_runtime.nodes.link import Link

DEADLINE_S = 60.0


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
    links = Link(connection, "node 1 at 10.0.0.7"), Link(other, "node 0 at 10.0.0.6")
    yield links
    for link in links:
        link.close()


def begun(link: Link) -> tuple[NodeHeartbeat, "queue.Queue[str]"]:
    heard: queue.Queue[str] = queue.Queue()
    heartbeat = NodeHeartbeat(link, heard.put)
    heartbeat.begin()
    return heartbeat, heard


def test_the_reason_of_an_end_arrives_in_one_line(ends: tuple[Link, Link]) -> None:
    (_, here), (there, _) = begun(ends[0]), begun(ends[1])
    there.say("rank 3 was killed\nby SIGKILL")
    assert here.get(timeout=DEADLINE_S) == "rank 3 was killed by SIGKILL"


def test_a_reason_of_any_length_is_cut(ends: tuple[Link, Link]) -> None:
    (_, here), (there, _) = begun(ends[0]), begun(ends[1])
    there.say("ä" * 100_000)
    assert here.get(timeout=DEADLINE_S).startswith("ää")


def test_a_closed_connection_is_an_end(ends: tuple[Link, Link]) -> None:
    _, heard = begun(ends[0])
    ends[1].close()
    assert heard.get(timeout=DEADLINE_S) == "node 1 at 10.0.0.7 has closed the connection"


def test_nodes_that_beat_are_not_taken_for_silent(ends: tuple[Link, Link]) -> None:
    (first, here), (second, there) = begun(ends[0]), begun(ends[1])
    first.end_start()
    second.end_start()
    with pytest.raises(queue.Empty):
        here.get(timeout=2 * LOOK_S * MOST_SILENT_LOOKS)
    assert there.empty()


def test_a_node_that_is_silent_is_lost_within_two_seconds_of_looks(ends: tuple[Link, Link]) -> None:
    """It keeps its connection, as a stopped process does."""
    _, heard = begun(ends[0])
    ends[1].send(bytes([MOST_SILENT_LOOKS]))
    assert heard.get(timeout=DEADLINE_S) == "node 1 at 10.0.0.7 was silent for 1.75 s"


def test_the_end_of_a_start_is_told_at_once(ends: tuple[Link, Link]) -> None:
    """Before the first beat, which a process that is stopped right after would not send."""
    heartbeat = NodeHeartbeat(ends[0], lambda _: None)
    heartbeat.end_start()
    assert ends[1].has_bytes(DEADLINE_S)
    assert ends[1].receive(64) == bytes([MOST_SILENT_LOOKS])
    ends[0].close()
    heartbeat.end_start()


def test_a_node_that_starts_may_be_silent_for_longer(ends: tuple[Link, Link]) -> None:
    _, heard = begun(ends[0])
    ends[1].send(bytes([255]))
    with pytest.raises(queue.Empty):
        heard.get(timeout=2 * LOOK_S * MOST_SILENT_LOOKS)
    ends[1].close()
    assert heard.get(timeout=DEADLINE_S) == "node 1 at 10.0.0.7 has closed the connection"


def test_what_is_no_beat_ends_the_node(ends: tuple[Link, Link]) -> None:
    _, heard = begun(ends[0])
    ends[1].send(bytes(4097), within_s=DEADLINE_S)
    assert heard.get(timeout=DEADLINE_S).startswith("node 1 at 10.0.0.7 sent 4,097 bytes where at most")
