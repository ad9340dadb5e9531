"""Two real servers: the second computes what the first is asked most, before it is ready and for a bounded time."""

import contextlib
import socket
import sys
import threading
from urllib.parse import urlencode

import pytest

from fakes import checkpoints
from fakes.api_process import api_process

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
SYSTEM = "the operator watches the services and the engine reads a plan and answers with tokens " * 8
ARGS = ("--kv-cache-tokens", "4096", "--device", "cpu", "--served-model-name", "tiny")

pytestmark = pytest.mark.xdist_group("server-prefix-warmup")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")


def cached(server, prompt, salt=None):
    """Tokens of a prompt that were not computed."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "temperature": 0}
    answer = server.ask("/v1/completions", body if salt is None else {**body, "cache_salt": salt})
    assert answer.status == 200, answer.body
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def told(server, *bases):
    """What an operator would post while the server starts."""
    return server.ask(f"/peers?{urlencode([('address', base) for base in bases])}", ops=True, method="POST")


def ops(server):
    return f"http://{server.ops[0]}:{server.ops[1]}"


def test_the_second_replica_has_what_the_first_is_asked_most(model):
    with api_process(model, *ARGS, command=REAL) as first:
        for number in range(3):
            cached(first, f"{SYSTEM}question {number}")
            cached(first, f"private {SYSTEM}{number}", salt="tenant-a")
        cached(first, f"asked once {SYSTEM}")
        with api_process(model, *ARGS, command=REAL, wait="listening") as second:
            assert told(second, ops(first)).json == {"peers": 1}
            second.wait_ready()
            assert cached(second, f"{SYSTEM}a new question") >= 128
            # A salt stays a salt: others find nothing of it, and its own requests do.
            assert cached(second, f"private {SYSTEM}9") == 0
            assert cached(second, f"private {SYSTEM}9", salt="tenant-a") >= 128
            assert cached(second, f"asked once {SYSTEM}") == 0
            assert second.state()["start"]["warm_s"] > 0
            assert told(second, ops(first)).status == 409
            assert second.ask("/prefixes?top=4").status == 404, "clients cannot read what others ask"
        assert first.ask("/prefixes", ops=True).json["prefixes"]
        first.ask("/reset_prefix_cache", ops=True, method="POST")
        assert first.ask("/prefixes", ops=True).json["prefixes"] == []


@contextlib.contextmanager
def peer(answer):
    """A peer that sends what answer(connection) sends to each that connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=one, args=(connection,), daemon=True).start()

        def one(connection):
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def silent(connection):
    connection.recv(1)


def endless(connection):
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[")
    while True:
        connection.sendall(b"1," * 32768)


def lying(connection):
    document = b'{"tokenizer": "another", "prefixes": [{"ids": [1, 2, 3], "hits": 9}]}'
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(document), document))


def test_peers_that_are_silent_endless_or_wrong_do_not_keep_it_from_being_ready(model):
    with peer(silent) as one, peer(endless) as other, peer(lying) as third:
        arguments = (*ARGS, "--prefix-warmup-seconds", "2")
        with api_process(model, *arguments, command=REAL, wait="listening") as server:
            assert told(server, "http://peer.example:8001").status == 422
            assert told(server, one, other, third).json == {"peers": 3}
            server.wait_ready()
            assert server.state()["start"]["warm_s"] > 0.4
            assert "3 peers gave no usable answer" in server.output()
            assert cached(server, SYSTEM) == 0
