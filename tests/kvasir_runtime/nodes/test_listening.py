"""Whoever connects, and whatever this process lacks, later connections are served."""

import socket
import threading

import pytest

from kvasir_runtime.nodes import listening
from kvasir_runtime.nodes.link import Link
from kvasir_runtime.nodes.listening import Acceptor, bind

LONG_S = 60.0


def test_a_connection_for_which_there_is_no_thread_is_closed_and_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serve(link: Link) -> None:
        link.send(b"served")
        link.close()

    acceptor = Acceptor(listener := bind("127.0.0.1", 0, ""), serve, most=1, name="test")
    acceptor.start()
    monkeypatch.setattr(listening, "RETRY_S", 0.0)
    started: list[str] = []
    start = threading.Thread.start

    def full_once(thread: threading.Thread) -> None:
        started.append(thread.name)
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full_once)
    answers = []
    for _ in range(2):
        with socket.create_connection(listener.getsockname(), LONG_S) as client:
            answers.append(client.recv(4096)[-6:])
    assert answers == [b"", b"served"]
    acceptor.close()
