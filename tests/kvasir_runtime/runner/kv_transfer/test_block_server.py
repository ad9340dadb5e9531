"""A replica computes a prompt for another one, which gets each block when it is there, whatever becomes of the rest."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from fakes.block_receiver import LONG_S, SALT, TOKENS, Receiver, content, keys_in, store_of
from fakes.kv_peers import FACTS, KEY
from kvasir_runtime.core.plan import PeerPrefill
from kvasir_runtime.nodes.listening import bind
from kvasir_runtime.runner.kv_transfer import block_fetcher, block_server, tcp_peer
from kvasir_runtime.runner.kv_transfer.block_server import BlockServer
from kvasir_runtime.runner.kv_transfer.interface import PeerError

WHOSE = PeerPrefill(tenant="acme", weight=2.0, priority=3)


class Engine:
    """Computes a prompt in chunks; a test allows each one. left: whether the last caller has ended."""

    def __init__(self, store):
        self.store, self.keys = store, keys_in(store)
        self.chunks = threading.Semaphore(0)
        self.asked, self.left = [], threading.Event()
        self.sizes, self.done = [], 0

    @contextmanager
    def __call__(self, tokens, salt, prefill):
        self.asked.append((tokens, salt, prefill))
        try:
            yield self
        finally:
            self.left.set()

    def has_ended(self, wait_s):
        if self.sizes and self.chunks.acquire(timeout=wait_s):
            last = self.done + self.sizes.pop(0)
            for number in reversed(range(self.done, last)):  # as the blocks of a chunk are stored
                self.store.put([(self.keys[number], memoryview(content(number)))])
            self.done = last
        return not self.sizes


@pytest.fixture
def receiver(tmp_path):
    made = Receiver(tmp_path / "here")
    yield made
    made.fetcher.forget_connections()


@pytest.fixture
def computing(tmp_path):
    """A replica that holds nothing and computes: its engine, and its address."""
    store = store_of(tmp_path / "there")
    server = BlockServer(bind("127.0.0.1", 0, ""), store, FACTS)
    server.keys = (KEY,)
    server.prefill = engine = Engine(store_of(tmp_path / "there"))
    yield engine, f"127.0.0.1:{server.port}"
    server.close()


def after(monkeypatch, engine, *counts):
    """Have the next chunk computed once so many blocks have come; the numbers of those that have."""
    received, receive = [], tcp_peer.TcpPeer.receive

    def seen(self, place, deadline):
        found = receive(self, place, deadline)
        if found is not None:
            received.append(found[0])
            if len(received) in counts:
                engine.chunks.release()
        return found

    monkeypatch.setattr(tcp_peer.TcpPeer, "receive", seen)
    return received


def test_blocks_come_while_their_prompt_is_computed(receiver, computing, monkeypatch):
    engine, peer = computing
    engine.sizes = [8, 7, 5]
    received = after(monkeypatch, engine, 8, 15)
    engine.chunks.release()
    came, result = receiver.fetch(peer, prefill=WHOSE)
    assert (sorted(came), result.failed) == (list(range(20)), False)
    assert [set(received[:8]), set(received[8:15])] == [set(range(8)), set(range(8, 15))]
    assert receiver.held() == list(range(20))
    assert engine.asked == [(TOKENS, SALT, WHOSE)]
    assert 0 < result.seconds < 5


def test_what_is_held_already_is_not_computed(receiver, computing):
    engine, peer = computing
    engine.sizes = [20]
    engine.chunks.release()
    engine.has_ended(0)
    assert receiver.fetch(peer, prefill=WHOSE)[0] == list(range(20))
    assert engine.asked == []


def test_a_prompt_that_the_peer_refuses_costs_a_moment_and_no_rest(receiver, computing, monkeypatch):
    monkeypatch.setattr(block_server, "SETTLE_S", 0.05)
    _, peer = computing
    assert receiver.fetch(peer, prefill=WHOSE)[1].failed is False
    assert receiver.held() == []


@pytest.mark.parametrize("sizes", [[7], [7, 0]], ids=["once it has ended", "while it is computed"])
def test_blocks_behind_many_that_never_come_are_given(receiver, computing, monkeypatch, sizes):
    """As in a group with a window, of which the peer keeps only what the end of the prefix needs that it has found."""
    monkeypatch.setattr(block_server, "SETTLE_S", 0.05)
    monkeypatch.setattr(block_server, "LOOK_AHEAD", 4)
    engine, peer = computing
    engine.done, engine.sizes = 13, sizes
    after(monkeypatch, engine, 7)
    engine.chunks.release()
    came, result = receiver.fetch(peer, prefill=WHOSE)
    assert (sorted(came), result.failed) == (list(range(13, 20)), False)


def test_a_prompt_that_is_cut_short_gives_its_beginning(receiver, computing, monkeypatch):
    monkeypatch.setattr(block_server, "SETTLE_S", 0.05)
    engine, peer = computing
    engine.sizes = [6]
    engine.chunks.release()
    came, result = receiver.fetch(peer, prefill=WHOSE)
    assert (sorted(came), result.failed) == (list(range(6)), False)


def test_a_peer_that_computes_for_too_long_is_left_and_stops(receiver, computing):
    """It says that it computes, so that its silence ends nothing: the time of the fetch does. It has not failed,
    and the next prompt may be quicker."""
    engine, peer = computing
    engine.sizes = [4, 16]
    engine.chunks.release()
    begun = time.monotonic()
    came, result = receiver.fetch(peer, within_s=1.0, prefill=WHOSE)
    assert (sorted(came), result.failed) == (list(range(4)), False)
    assert time.monotonic() - begun < LONG_S
    assert engine.left.wait(LONG_S)
    assert engine.sizes == [16]


@pytest.mark.parametrize("before", [False, True], ids=["over a new connection", "over one from before"])
def test_a_fetch_that_no_request_waits_for_ends_at_once_and_so_does_its_prompt(
    receiver, computing, monkeypatch, caplog, before
):
    engine, peer = computing
    if before:
        receiver.fetch(peer)
    engine.sizes = [4, 16]
    engine.chunks.release()
    receive = tcp_peer.TcpPeer.receive

    def cancelled(self, place, deadline):
        if engine.sizes == [16]:  # the first chunk is on its way
            receiver.cancel()
        return receive(self, place, deadline)

    monkeypatch.setattr(tcp_peer.TcpPeer, "receive", cancelled)
    came, result = receiver.fetch(peer, within_s=10 * LONG_S, prefill=WHOSE)
    assert set(came) < set(range(5))
    assert result.failed is True
    assert engine.left.wait(LONG_S)
    assert (engine.sizes, len(engine.asked), caplog.text) == ([16], 1, "")
    monkeypatch.setattr(tcp_peer.TcpPeer, "receive", receive)
    receiver.cancel()  # too late, which ends no later fetch
    engine.sizes, engine.done = [], 0
    assert receiver.fetch(peer)[1].failed is False


def test_a_peer_that_falls_silent_is_left_before_the_time_of_the_fetch(receiver, computing, monkeypatch):
    monkeypatch.setattr(tcp_peer, "SILENCE_S", 0.2)
    monkeypatch.setattr(tcp_peer, "BEAT_S", LONG_S)
    engine, peer = computing
    engine.sizes = [20]
    begun = time.monotonic()
    came, result = receiver.fetch(peer, within_s=10 * LONG_S, prefill=WHOSE)
    assert (came, result.failed) == ([], True)
    assert time.monotonic() - begun < LONG_S
    assert engine.left.wait(LONG_S)


def test_a_peer_that_falls_silent_on_a_connection_from_before_is_not_asked_again(receiver, computing, monkeypatch):
    engine, peer = computing
    assert receiver.fetch(peer)[1].failed is False
    monkeypatch.setattr(tcp_peer, "SILENCE_S", 0.2)
    monkeypatch.setattr(tcp_peer, "BEAT_S", LONG_S)
    engine.sizes = [20]
    assert receiver.fetch(peer, within_s=10 * LONG_S, prefill=WHOSE)[1].failed is True
    assert engine.left.wait(LONG_S)
    assert len(engine.asked) == 1


def test_a_frozen_peer_is_left_before_the_time_of_the_fetch(receiver, monkeypatch):
    """The kernel accepts connections for it, and it greets none."""
    monkeypatch.setattr(block_fetcher, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        begun = time.monotonic()
        peer = f"127.0.0.1:{frozen.getsockname()[1]}"
        assert receiver.fetch(peer, within_s=10 * LONG_S, prefill=WHOSE)[1].failed is True
        assert time.monotonic() - begun < LONG_S


def test_a_prompt_that_its_model_does_not_take_ends_the_connection(receiver, computing):
    _, peer = computing

    def refuses(tokens, salt, prefill):
        raise PeerError("a prompt has ids that the model does not have")

    computing[0].__class__.__call__, kept = refuses, Engine.__call__
    try:
        assert receiver.fetch(peer, prefill=WHOSE)[1].failed is True
    finally:
        Engine.__call__ = kept
    assert receiver.held() == []


def test_a_peer_that_computes_nothing_gives_what_it_holds(receiver, tmp_path):
    store = store_of(tmp_path / "plain")
    store.put([(key, memoryview(content(number))) for number, key in enumerate(keys_in(store)[:3])])
    server = BlockServer(bind("127.0.0.1", 0, ""), store, FACTS)
    server.keys = (KEY,)
    came, result = receiver.fetch(f"127.0.0.1:{server.port}", prefill=WHOSE)
    assert (came, result.failed) == ([0, 1, 2], False)
    server.close()


def test_a_peer_that_computes_as_many_prompts_as_it_may_gives_what_it_holds(receiver, tmp_path, monkeypatch):
    monkeypatch.setattr(block_server, "MOST_PREFILLS", 1)
    store = store_of(tmp_path / "there")
    server = BlockServer(bind("127.0.0.1", 0, ""), store, FACTS)
    server.keys, peer = (KEY,), f"127.0.0.1:{server.port}"
    server.prefill = engine = Engine(store_of(tmp_path / "there"))
    engine.sizes = [20]
    other = Receiver(tmp_path / "other")
    fetching = threading.Thread(target=other.fetch, args=(peer,), kwargs={"prefill": WHOSE})
    fetching.start()
    deadline = time.monotonic() + LONG_S
    while not engine.asked:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    came, result = receiver.fetch(peer, prefill=WHOSE)
    assert (came, result.failed, len(engine.asked)) == ([], False, 1)
    engine.chunks.release()
    fetching.join()
    assert other.held() == list(range(20))
    assert receiver.fetch(peer, prefill=WHOSE)[0] == list(range(20))
    other.fetcher.forget_connections()
    server.close()


@pytest.mark.parametrize(
    "request_bytes", [b"", b"\x80", bytes(33), tcp_peer.msgspec.msgpack.encode({"keys": bytes(34)})]
)
def test_a_request_that_is_none_is_refused(request_bytes):
    with pytest.raises(PeerError):
        tcp_peer.query_of(request_bytes)
