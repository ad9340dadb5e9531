"""Blocks go from one replica's file to another's; whatever a peer does, a fetch ends and keeps no wrong block."""

import os
import queue
import socket
import threading
import time

import msgspec
import pytest

from fakes.block_receiver import (
    BLOCK_BYTES,
    LONG_S,
    SALT,
    TOKENS,
    Receiver,
    content,
    keys_in,
    store_of,
)
from fakes.kv_peers import FACTS, KEY
from kvasir_api.hashes import block_root, prompt_block_hashes, split_block_hashes
from kvasir_runtime.core.plan import BlockFetch, PeerBlock
from kvasir_runtime.nodes import key_proof
from kvasir_runtime.nodes.link import Link
from kvasir_runtime.nodes.listening import Acceptor, bind
from kvasir_runtime.runner.kv_transfer import block_fetcher, block_server, tcp_peer
from kvasir_runtime.runner.kv_transfer.block_server import BlockServer
from kvasir_runtime.runner.kv_transfer.interface import BlockQuery, PeerError

SHORT_S = 0.3


@pytest.fixture
def receiver(tmp_path):
    made = Receiver(tmp_path / "here")
    yield made
    made.fetcher.forget_connections()


@pytest.fixture
def giver(tmp_path):
    """A replica that holds the first 12 blocks: its store, and its address."""
    store = store_of(tmp_path / "there")
    store.put([(key, memoryview(content(number))) for number, key in enumerate(keys_in(store)[:12])])
    server = BlockServer(bind("127.0.0.1", 0, ""), store, FACTS)
    server.keys = (b"x" * 32, KEY)
    yield store, f"127.0.0.1:{server.port}"
    server.close()


def test_what_a_peer_holds_comes_and_is_kept_under_names_of_this_replica(receiver, giver):
    store, peer = giver
    assert store.salt != receiver.store.salt
    came, result = receiver.fetch(peer)
    assert (came, result.failed) == (list(range(12)), False)
    assert result.seconds > 0
    assert receiver.held() == list(range(12))


def test_a_fetch_goes_on_where_another_ended(receiver, giver):
    _, peer = giver
    assert receiver.fetch(peer, range(5))[0] == [0, 1, 2, 3, 4]
    assert receiver.fetch(peer, range(3, 20))[0] == list(range(3, 12))
    assert receiver.held() == list(range(12))


def test_a_connection_is_used_again_and_replaced_once_the_peer_has_closed_it(tmp_path, receiver, giver, monkeypatch):
    store, _ = giver
    asked = []
    server = BlockServer(bind("127.0.0.1", 0, ""), store, FACTS)
    server.keys = (KEY,)
    admitted = server._admit
    monkeypatch.setattr(server, "_admit", lambda link: (asked.append(link), admitted(link)))
    peer = f"127.0.0.1:{server.port}"
    for _ in range(3):
        assert receiver.fetch(peer)[0] == list(range(12))
    assert len(asked) == 1
    asked[0].end()
    assert receiver.fetch(peer)[0] == list(range(12))
    assert len(asked) == 2
    server.close()


def test_blocks_of_another_tenant_are_not_found(receiver, giver):
    store, peer = giver
    receiver.keys = keys_in(receiver.store, b"another")
    came, result = receiver.fetch(peer)
    assert (came, result.failed) == ([*range(12)], False)  # the salt of the fetch decides, not the keys here
    root = block_root(salt=b"another", secret=store.salt)
    found = store.located(
        [one + b"\0" for one in split_block_hashes(prompt_block_hashes(TOKENS, root=root, block_size=4))]
    )
    assert found == [None] * 20


@pytest.mark.parametrize(
    ("key", "facts", "words"),
    [
        (b"y" * 32, FACTS, "closed the connection"),
        (KEY, {**FACTS, "the model's content": "ffff"}, "the model's content is not the same at both replicas"),
        (KEY, {**FACTS, "--kv-cache-dtype": "int8"}, "--kv-cache-dtype is not the same"),
        (KEY, {}, "the model's content is not the same"),
    ],
    ids=["another key", "another model", "another option", "nothing said"],
)
def test_a_replica_whose_blocks_are_others_gets_none(tmp_path, giver, caplog, key, facts, words):
    _, peer = giver
    refused = Receiver(tmp_path / "refused", key=key, facts=facts)
    came, result = refused.fetch(peer)
    assert (came, result.failed) == ([], True)
    assert words in caplog.text
    assert "yyyy" not in caplog.text


def test_facts_and_the_secret_of_hashes_do_not_cross_the_connection_in_clear():
    facts = tcp_peer.coded(FACTS, KEY)
    assert not any(value.encode() in code for value in FACTS.values() for code in facts.values())
    assert facts != tcp_peer.coded(FACTS, b"z" * 32)
    salt = os.urandom(32)
    masked = tcp_peer.masked(salt, KEY, b"1" * 64)
    assert masked != salt
    assert masked != tcp_peer.masked(salt, KEY, b"2" * 64)
    assert tcp_peer.masked(masked, KEY, b"1" * 64) == salt


def answering(play):
    """A peer with the key that answers the first request of each connection as play does, and then waits."""
    there = threading.Event()

    def serve(link: Link) -> None:
        try:
            call = key_proof.receive(link, tcp_peer.PURPOSE, LONG_S)
            said = tcp_peer.PeerAnswer(refusal="", salt=tcp_peer.masked(b"s" * 32, KEY, call.numbers))
            key_proof.answer(link, call, KEY, msgspec.msgpack.encode(said), LONG_S)
            link.receive(1 << 20, within_s=LONG_S)
            play(link)
            there.wait(LONG_S)
        except OSError:
            pass  # the other side had enough
        finally:
            link.close()

    acceptor = Acceptor(listener := bind("127.0.0.1", 0, ""), serve, most=8, name="lying-peer")
    acceptor.start()
    return acceptor, f"127.0.0.1:{listener.getsockname()[1]}", there


def block(link, index, content, crc=0):
    link.send(tcp_peer.HEAD.pack(index, crc))
    link.send(content)


def wrong_bytes(link):
    for index in range(20):
        block(link, index, b"\1" * BLOCK_BYTES)
    link.send(tcp_peer.HEAD.pack(tcp_peer.END, 0))


def endless(link):
    while True:
        block(link, 0, b"\1" * BLOCK_BYTES)


def trickle(link):
    while True:
        link._connection.sendall(b"\0")
        time.sleep(0.01)


LIES = {
    "wrong bytes": wrong_bytes,
    "a longer block": lambda link: block(link, 0, b"\1" * (BLOCK_BYTES + 1)),
    "a shorter block": lambda link: block(link, 0, b"\1"),
    "a block that was not asked for": lambda link: block(link, 77, b"\1" * BLOCK_BYTES),
    "no end": endless,
    "silence": lambda link: None,
    "half a block": lambda link: (link.send(tcp_peer.HEAD.pack(0, 0)), link._connection.sendall(b"\1" * 5000)),
    "a byte now and then": trickle,
    "no frames": lambda link: link._connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 100),
    "an end at once": lambda link: link.end(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_peer_that_lies_costs_no_more_than_the_time_of_the_fetch(receiver, lie):
    acceptor, peer, there = answering(LIES[lie])
    begun = time.monotonic()
    came, result = receiver.fetch(peer, within_s=SHORT_S)
    assert (came, result.failed) == ([], True)
    assert result.seconds < LONG_S / 2  # far below what the peer would go on for
    assert time.monotonic() - begun < LONG_S / 2
    assert receiver.held() == []
    there.set()
    acceptor.close()


@pytest.mark.parametrize("peer", ["127.0.0.1:1", "192.0.2.1", "host:80", "127.0.0.1:99999", "[::1", "::1:80:"])
def test_an_address_where_no_peer_is_costs_nothing_more(receiver, peer):
    came, result = receiver.fetch(peer, within_s=SHORT_S)
    assert (came, result.failed) == ([], True)


def test_a_stranger_that_greets_wrongly_is_told_nothing(receiver):
    got = queue.Queue()

    def serve(link):
        link.send(b"kvasir nodes 1\n" + b"\0" * 32)
        try:
            got.put(bytes(link.receive(1 << 20, within_s=LONG_S)))
        except OSError:
            got.put(b"")
        link.close()

    acceptor = Acceptor(listener := bind("127.0.0.1", 0, ""), serve, most=8, name="stranger")
    acceptor.start()
    assert receiver.fetch(f"127.0.0.1:{listener.getsockname()[1]}")[1].failed
    assert got.get(timeout=LONG_S) == b""
    acceptor.close()


def test_a_caller_that_is_no_replica_is_cut_off_and_others_are_served(receiver, giver, caplog):
    _, peer = giver
    host, port = tcp_peer.address_of(peer)
    with socket.create_connection((host, port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\0" * 100)
        stranger.settimeout(LONG_S)
        while stranger.recv(4096):
            pass
    assert receiver.fetch(peer)[0] == list(range(12))


def test_a_request_that_is_no_list_of_keys_ends_the_connection(giver):
    _, peer = giver
    connection = tcp_peer.connect(peer, time.monotonic() + LONG_S, key=KEY, facts=FACTS)
    connection._link.send(b"\0" * 50)
    connection._left = range(1)
    with pytest.raises((OSError, PeerError)):
        connection.receive(memoryview(bytearray(BLOCK_BYTES)), time.monotonic() + LONG_S)
    connection.close()


def test_a_block_that_is_replaced_while_it_is_sent_is_not_kept(receiver, giver, monkeypatch):
    """Its place in the file gets another block between the look at the table and the copy."""
    store, peer = giver
    located = store.located

    def replaced(keys):
        found = located(keys)
        os.pwrite(store.descriptor, b"\xff" * BLOCK_BYTES, found[3].offset)
        return found

    monkeypatch.setattr(store, "located", replaced)
    came, result = receiver.fetch(peer)
    assert (came, result.failed) == ([number for number in range(12) if number != 3], False)
    assert 3 not in receiver.held()


def test_what_was_dropped_or_forgotten_is_given_to_no_peer(receiver, giver):
    store, peer = giver
    store.drop(keys_in(store)[:4])
    assert receiver.fetch(peer)[0] == list(range(4, 12))
    store.begin_forgetting()
    store.forget()
    assert receiver.fetch(peer, range(12))[0] == []


def test_fetches_run_side_by_side_and_a_silent_peer_holds_up_none(receiver, giver):
    _, peer = giver
    acceptor, silent, there = answering(lambda link: None)
    blocks = tuple(PeerBlock(column, receiver.keys[column]) for column in range(12))
    fetches = [
        BlockFetch(number=number, peer=address, within_s=LONG_S, salt=SALT, tokens=TOKENS, blocks=blocks)
        for number, address in ((101, silent), (102, peer), (103, silent))
    ]
    with receiver.changed:
        receiver.fetcher.submit(fetches)
        assert receiver.changed.wait_for(lambda: receiver.fetcher.has_ended, LONG_S)
        assert [(one.number, len(one.keys)) for one in receiver.fetcher.take()] == [(102, 12)]
    there.set()  # the silent peers end
    with receiver.changed:
        assert receiver.changed.wait_for(lambda: not receiver.fetcher.is_busy, LONG_S)
        assert {(one.number, one.failed) for one in receiver.fetcher.take()} == {(101, True), (103, True)}
    acceptor.close()


def test_of_many_fetches_from_a_peer_few_connections_stay(receiver, giver, monkeypatch):
    """Each takes a place there, which other replicas need."""
    links, all_are_there, admit = [], threading.Barrier(8), BlockServer._admit

    def together(self, link):
        links.append(link)
        admit(self, link)
        all_are_there.wait(LONG_S)

    monkeypatch.setattr(BlockServer, "_admit", together)
    blocks = tuple(PeerBlock(column, receiver.keys[column]) for column in range(12))
    fetches = [
        BlockFetch(number=number, peer=giver[1], within_s=LONG_S, salt=SALT, tokens=TOKENS, blocks=blocks)
        for number in range(8)
    ]
    with receiver.changed:
        receiver.fetcher.submit(fetches)
        assert receiver.changed.wait_for(lambda: not receiver.fetcher.is_busy, LONG_S)
        assert [result.failed for result in receiver.fetcher.take()] == [False] * 8
    deadline = time.monotonic() + LONG_S
    while sum(link._connection.fileno() >= 0 for link in links) > block_fetcher.MOST_IDLE_OF_PEER:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert receiver.fetch(giver[1])[1].failed is False
    assert len(links) == 8, "one of them was used again"


def test_without_a_thread_a_fetch_ends_at_once(receiver, giver, monkeypatch):
    def full():
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(receiver.fetcher, "_started", full)
    came, result = receiver.fetch(giver[1])
    assert (came, result.failed) == ([], True)
    assert not receiver.fetcher.is_busy


def read_all(connection):
    while connection._link.has_bytes(LONG_S):
        connection._link.receive(1 << 20, within_s=LONG_S)


def test_a_caller_that_takes_too_long_is_cut_off(giver, monkeypatch):
    store, peer = giver
    monkeypatch.setattr(block_server, "ANSWER_S", 0.05)
    link_send, sent = Link.send_file, 60_000

    def again_and_again(self, *args, **times):
        for _ in range(sent):  # 22 GB, which no connection takes so soon
            link_send(self, *args, **times)

    monkeypatch.setattr(Link, "send_file", again_and_again)
    connection = tcp_peer.connect(peer, time.monotonic() + LONG_S, key=KEY, facts=FACTS)
    connection.ask(BlockQuery(keys=b"".join(keys_in(store)[:12])), time.monotonic() + LONG_S)
    with pytest.raises((OSError, PeerError)):
        read_all(connection)
    connection.close()
