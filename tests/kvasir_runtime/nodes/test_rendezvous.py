"""Nodes meet: in any order, only with the key, only where they fit together, and behind a port that closes."""

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest

from fakes.ranks import together
from kvasir_runtime.errors import RankLostError, StartError
from kvasir_runtime.nodes import handshake, rendezvous
from kvasir_runtime.nodes.handshake import MAGIC, Membership
from kvasir_runtime.nodes.link import Link
from kvasir_runtime.nodes.rendezvous import NodeLinks

KEY = b"a key that only nodes of tests have"
ADDRESS = "127.0.0.1"
DEADLINE_S = 60.0


def member(node: int, nodes: int = 2, **facts: str) -> Membership:
    return Membership(node=node, nodes=nodes, channel="", facts={"--dtype": "auto", **facts})


def nothing(_: str, missing: tuple[int, ...]) -> None:
    """Of those who wait."""


class Meeting:
    """A leader that waits on a free port, in a thread."""

    def __init__(self, nodes: int = 2, *, key: bytes = KEY, within_s: float = DEADLINE_S) -> None:
        self._pool = ThreadPoolExecutor(nodes + 1)
        listener = rendezvous.listen(ADDRESS, 0, time.monotonic())
        self.port: int = listener.getsockname()[1]
        self.waited: list[str] = []
        self.missing: list[tuple[int, ...]] = []
        deadline = time.monotonic() + within_s
        self.leading: Future[NodeLinks] = self._pool.submit(
            rendezvous.lead, listener, key, member(0, nodes), deadline, self._on_wait
        )

    def _on_wait(self, words: str, missing: tuple[int, ...]) -> None:
        self.missing.append(missing)
        self.waited.append(words)

    def follow(self, own: Membership, key: bytes = KEY) -> "Future[NodeLinks]":
        deadline = time.monotonic() + DEADLINE_S
        return self._pool.submit(rendezvous.follow, ADDRESS, self.port, key, own, deadline, nothing)

    def connect(self) -> socket.socket:
        return socket.create_connection((ADDRESS, self.port), DEADLINE_S)

    def waits_for(self, nodes: str) -> None:
        """Until it has said so: all connections of the others are there."""
        deadline = time.monotonic() + DEADLINE_S
        while f"waiting for {nodes}" not in self.waited:
            assert time.monotonic() < deadline, self.waited
            time.sleep(0.01)

    def ends_well(self) -> None:
        """Whether what came before has not kept a node from joining."""
        closed(*together(self.leading, self.follow(member(1))))


def closed(*all_links: NodeLinks) -> None:
    for links in all_links:
        for link in (*links.steps, *links.control):
            link.close()


@pytest.fixture(autouse=True)
def _patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may keep a node from running for longer than a stranger may be silent."""
    if request.function is not test_strangers_that_say_nothing_take_no_more_than_their_places:
        for name in ("HANDSHAKE_S", "ANSWER_S"):
            monkeypatch.setattr(handshake, name, DEADLINE_S)


def test_three_nodes_have_two_connections_each_and_the_port_closes() -> None:
    meeting = Meeting(3)
    second, first = meeting.follow(member(2, 3)), meeting.follow(member(1, 3))
    leading = meeting.leading.result(DEADLINE_S)
    assert [link.peer for link in leading.steps] == [f"node 1 at {ADDRESS}", f"node 2 at {ADDRESS}"]
    links = first.result(DEADLINE_S), second.result(DEADLINE_S)
    for node, of_node in enumerate(links):
        leading.steps[node].send(b"for %d" % node)
        assert of_node.steps[0].receive(64) == b"for %d" % node
        of_node.control[0].send(b"from %d" % node)
        assert leading.control[node].receive(64) == b"from %d" % node
    with pytest.raises(ConnectionRefusedError):
        meeting.connect()
    assert (meeting.waited[0], meeting.missing[0]) == ("waiting for nodes 1, 2 of 3", (1, 2))
    closed(leading, *links)


def test_a_node_that_comes_first_waits_for_the_leader() -> None:
    """On an address of its own, so that no other process has this port meanwhile."""
    address, calls, leading = "127.91.7.3", [], ThreadPoolExecutor(1)
    with socket.create_server((address, 0)) as probe:
        port = probe.getsockname()[1]
    deadline, found = time.monotonic() + DEADLINE_S, []

    def on_wait(words: str, missing: tuple[int, ...]) -> None:
        assert missing == ()
        calls.append(words)
        if len(calls) == 2:  # the first attempt has failed
            listener = rendezvous.listen(address, port, deadline)
            found.append(leading.submit(rendezvous.lead, listener, KEY, member(0), deadline, nothing))

    links = rendezvous.follow(address, port, KEY, member(1), deadline, on_wait)
    assert calls[0] == f"joining node 0 at {address}:{port}"
    closed(links, found[0].result(DEADLINE_S))


class HeldQueue(queue.Queue[tuple[Link, Membership]]):
    """Connections for steps wait for one for control, which must not overtake them, for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._overtaken = threading.Event()

    def put(self, item: tuple[Link, Membership], block: bool = True, timeout: float | None = None) -> None:
        if item[1].channel == "steps":
            self._overtaken.wait(1.0)
        super().put(item, block, timeout)
        if item[1].channel == "control":
            self._overtaken.set()


def test_the_connections_of_a_node_are_taken_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "Queue", HeldQueue)
    meeting = Meeting()
    links = meeting.follow(member(1)).result(DEADLINE_S)
    closed(meeting.leading.result(DEADLINE_S), links)


def said(*parts: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(b"".join(parts))


@pytest.mark.parametrize(
    "stranger",
    [
        said(b"GET / HTTP/1.1\r\n\r\n"),
        said(struct.pack("<IQ", 0, 1 << 62)),
        said(struct.pack("<IQ", 0, 3), b"abc"),
        said(struct.pack("<IQ", 0, 200), bytes(200)),
        said(struct.pack("<IQ", 7, 0)),
        lambda connection: connection.close(),
    ],
)
def test_a_stranger_is_refused_and_ends_nothing(stranger: Callable[[socket.socket], None]) -> None:
    meeting = Meeting()
    with meeting.connect() as connection:
        stranger(connection)
        meeting.ends_well()


def test_strangers_that_say_nothing_take_no_more_than_their_places() -> None:
    meeting = Meeting()
    crowd = [meeting.connect() for _ in range(2 * rendezvous.MOST_STRANGERS)]
    try:
        meeting.ends_well()  # the places are free again once a handshake's time is over
    finally:
        for connection in crowd:
            connection.close()


def test_a_node_with_another_key_is_refused_and_the_leader_waits_on() -> None:
    meeting = Meeting()
    with pytest.raises(StartError, match=r"^node 0 at .* does not have the key of --node-key-file$"):
        meeting.follow(member(1), b"another key of the same length, or so").result(DEADLINE_S)
    meeting.ends_well()


def test_a_recorded_request_to_join_is_of_no_use() -> None:
    """It holds for the number of its own connection."""
    meeting, recorded = Meeting(), bytearray()
    with socket.create_server((ADDRESS, 0)) as relay, ThreadPoolExecutor(1) as pool:

        def record() -> None:
            with relay.accept()[0] as client, meeting.connect() as leader:
                client.sendall(leader.recv(4096))
                recorded.extend(client.recv(65_536))

        recording = pool.submit(record)
        own = member(1)
        link = Link(socket.create_connection(relay.getsockname()), "the relay")
        with pytest.raises(OSError, match=r"closed|reset"):
            handshake.join(link, KEY, own)
        link.close()
        recording.result(DEADLINE_S)
    with meeting.connect() as connection:
        again = Link(connection, "node 0")
        greeting = again.receive(4096, within_s=DEADLINE_S)
        assert greeting.startswith(MAGIC)
        connection.sendall(recorded)
        assert b"does not have the key" in again.receive(4096, within_s=DEADLINE_S)
    assert not meeting.leading.done()
    meeting.ends_well()


def test_a_process_without_the_key_cannot_lead() -> None:
    with socket.create_server((ADDRESS, 0)) as server:
        port = server.getsockname()[1]

        def pretend() -> None:
            with server.accept()[0] as connection:
                link = Link(connection, "a node")
                link.send(MAGIC + bytes(32))
                link.receive(1 << 20)
                link.send(bytes(32) + b"\x81\xa7refusal\xa0")  # a verdict without a word against it

        threading.Thread(target=pretend, daemon=True).start()
        with pytest.raises(StartError, match="does not have the key"):
            rendezvous.follow(ADDRESS, port, KEY, member(1), time.monotonic() + DEADLINE_S, nothing)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (member(1, **{"--dtype": "float32"}), "--dtype is float32 there and auto at node 0"),
        (member(1, **{"the version": "kvasir 9"}), "the version is kvasir 9 there and unknown at node 0"),
        (member(1, 3), "--nnodes is 3 there and 2 at node 0"),
        (member(2, 2), "--node-rank 2 is not one of 1 to 1"),
    ],
)
def test_a_node_that_does_not_fit_ends_both_with_the_reason(other: Membership, words: str) -> None:
    meeting = Meeting()
    with pytest.raises(StartError) as refused:
        meeting.follow(other).result(DEADLINE_S)
    assert str(refused.value).endswith(f"refuses node {other.node}: {words}")
    with pytest.raises(StartError) as ended:
        meeting.leading.result(DEADLINE_S)
    assert str(ended.value) == f"node {other.node} at {ADDRESS} cannot join: {words}"


def test_a_node_that_was_started_again_takes_the_place_of_the_first() -> None:
    meeting = Meeting(3)
    first = meeting.follow(member(1, 3))
    meeting.waits_for("nodes 2 of 3")
    second = meeting.follow(member(1, 3))
    with pytest.raises(RankLostError, match=r"another process has joined as node 1|ended before all nodes"):
        first.result(DEADLINE_S)
    third = meeting.follow(member(2, 3))
    closed(*(future.result(DEADLINE_S) for future in (meeting.leading, second, third)))


def test_a_node_that_is_started_again_is_not_paired_with_its_first_process() -> None:
    """Of the new one only the first connection is there: node 1 is missing still."""
    meeting = Meeting(3)
    first = meeting.follow(member(1, 3))
    meeting.waits_for("nodes 2 of 3")
    link = Link(meeting.connect(), "node 0")
    handshake.join(link, KEY, Membership(node=1, nodes=3, channel="steps", facts=member(1).facts))
    with pytest.raises(RankLostError):
        first.result(DEADLINE_S)
    others = [meeting.follow(member(node, 3)) for node in (2, 1)]
    leading = meeting.leading.result(DEADLINE_S)
    leading.steps[0].send(b"a step")
    assert others[1].result(DEADLINE_S).steps[0].receive(64) == b"a step"
    link.close()
    closed(leading, *(future.result(DEADLINE_S) for future in others))


def test_an_answer_may_take_longer_than_a_stranger_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one has the reason of a refusal, after which the leader ends."""
    bounds: list[float | None] = []

    class Bounded(Link):
        def receive(self, most: int, *, within_s: float | None = None) -> bytearray:
            bounds.append(within_s)
            return super().receive(most, within_s=within_s)

    monkeypatch.setattr(handshake, "ANSWER_S", 10 * DEADLINE_S)
    meeting = Meeting()
    link = Bounded(meeting.connect(), "node 0")
    handshake.join(link, KEY, msgspec.structs.replace(member(1), channel="steps"))
    stranger, answer = bounds
    assert stranger == DEADLINE_S
    assert DEADLINE_S < answer <= 10 * DEADLINE_S
    meeting.ends_well()
    link.close()


def test_who_waits_can_be_ended_and_leaves_no_port() -> None:
    def end(words: str, missing: tuple[int, ...]) -> None:
        raise InterruptedError(words)

    deadline = time.monotonic() + DEADLINE_S
    listener = rendezvous.listen(ADDRESS, 0, deadline)
    port = listener.getsockname()[1]
    with pytest.raises(InterruptedError, match="waiting for nodes 1 of 2"):
        rendezvous.lead(listener, KEY, member(0), deadline, end)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ADDRESS, port))
    with pytest.raises(InterruptedError, match="joining node 0"):
        rendezvous.follow(ADDRESS, port, KEY, member(1), deadline, end)


def test_nodes_that_are_missing_are_named_at_the_deadline() -> None:
    meeting = Meeting(3, within_s=0.0)
    with pytest.raises(RankLostError, match=r"^nodes 1, 2 of 3 have not joined within 600 s$"):
        meeting.leading.result(DEADLINE_S)
    with pytest.raises(RankLostError, match=rf"^node 0 at {ADDRESS}:{meeting.port} cannot be reached within 600 s"):
        rendezvous.follow(ADDRESS, meeting.port, KEY, member(1), time.monotonic() - 1, nothing)


def test_a_leader_that_ends_while_others_are_missing_ends_those_that_wait() -> None:
    meeting = Meeting(3)
    first = meeting.follow(member(1, 3))
    meeting.waits_for("nodes 2 of 3")
    with pytest.raises(StartError, match="refuses node 2"):
        meeting.follow(member(2, 3, **{"--dtype": "float32"})).result(DEADLINE_S)
    with pytest.raises(StartError, match="cannot join"):
        meeting.leading.result(DEADLINE_S)
    with pytest.raises(RankLostError, match="ended before all nodes had joined"):
        first.result(DEADLINE_S)


@pytest.mark.parametrize("address", ["192.0.2.1", "no name.invalid"])
def test_an_address_that_is_not_of_this_host_is_refused(address: str) -> None:
    with pytest.raises(StartError, match=f"^--master-addr {address}"):
        rendezvous.listen(address, 0, time.monotonic() - 1)
