"""Two real servers: the second computes what the first is asked most, before it is ready and for a bounded time."""

import contextlib
import os
import random
import socket
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest

from fakes import checkpoints
from fakes.api_process import DEADLINE_S, api_process

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
HELD = (sys.executable, str(Path(checkpoints.__file__).with_name("serve_held.py")))
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


def told(server, *bases, token=None):
    """What an operator would post while the server starts. token: of the call to the only peer."""
    named = [("address", base) for base in bases] + ([("token", token)] if token else [])
    return server.ask(f"/peers?{urlencode(named)}", ops=True, method="POST")


@contextlib.contextmanager
def starting(model, folder, *args):
    """A server that loads its model once the function that comes with it is called."""
    os.mkfifo(pipe := folder / "held")
    with api_process(model, *ARGS, *args, command=HELD, env={"KVASIR_HELD": str(pipe)}, wait="listening") as server:
        yield server, lambda: pipe.write_bytes(b"")


def ops(server):
    return f"http://{server.ops[0]}:{server.ops[1]}"


SYSTEMS = [f"service {number} {SYSTEM}" for number in range(10)]
WINDOW = 40
TOKEN = "of those who run both servers"


def found(*servers):
    """Prompt tokens so far, and those of them that were found in a cache."""
    totals = [server.state()["totals"] for server in servers]
    return sum(t["prefix_query_tokens"] for t in totals), sum(t["prefix_hit_tokens"] for t in totals)


def hit_rate(draw, *servers):
    """Of prompt tokens of a window of requests that take turns at the servers, whatever these have; the hardest way."""
    query, hits = found(*servers)
    for number in range(WINDOW):
        # Few beginnings are asked often, most are rare, as in traces of chats and agents.
        (system,) = draw.choices(SYSTEMS, [1 / (place + 1) for place in range(len(SYSTEMS))])
        cached(servers[number % len(servers)], f"{system}question {draw.random()}")
    more_query, more_hits = found(*servers)
    return (more_hits - hits) / (more_query - query)


def test_the_second_replica_has_what_the_first_is_asked_most(model, tmp_path):
    """So that the hit rate of the fleet hardly falls when it is added."""
    draw, room, bearer = random.Random(7), ("--kv-cache-tokens", "8192"), {"authorization": f"Bearer {TOKEN}"}
    (keys := tmp_path / "keys").write_text(TOKEN)
    elsewhere = ("--host", "127.0.0.2", "--ops-key-file", str(keys))
    with api_process(model, *ARGS, *room, *elsewhere, command=REAL) as first:
        for number in range(3):
            cached(first, f"{SYSTEM}question {number}")
            cached(first, f"private {SYSTEM}{number}", salt="tenant-a")
        cached(first, f"asked once {SYSTEM}")
        hit_rate(draw, first)
        before = hit_rate(draw, first)
        with starting(model, tmp_path, *room, "--prefix-warmup-seconds", "600") as (second, load):
            assert told(second, ops(first), "http://127.0.0.1:1", token=TOKEN).status == 422, "whose it is is not known"
            assert told(second, ops(first), token=TOKEN).json == {"peers": 1}
            load()
            second.wait_ready()
            assert "; 0 peers gave no usable answer" in second.output()
            assert cached(second, f"{SYSTEM}a new question") >= 128
            # A salt stays a salt: others find nothing of it, and its own requests do.
            assert cached(second, f"private {SYSTEM}9") == 0
            assert cached(second, f"private {SYSTEM}9", salt="tenant-a") >= 128
            assert cached(second, f"asked once {SYSTEM}") == 0
            assert told(second, ops(first)).status == 409
            assert second.ask("/prefixes?top=4").status == 404, "clients cannot read what others ask"
            warm = hit_rate(draw, first, second)
            second.ask("/reset_prefix_cache", ops=True, method="POST")
            cold = hit_rate(draw, first, second)
            assert before > 0.8
            assert before - warm <= 0.03
            assert before - cold > 0.05, "what is measured would not show a cold replica"
        assert first.ask("/prefixes", ops=True).status == 401, "nor can other pods"
        assert first.ask("/prefixes", ops=True, headers=bearer).json["prefixes"]
        first.ask("/reset_prefix_cache", ops=True, method="POST", headers=bearer)
        assert first.ask("/prefixes", ops=True, headers=bearer).json["prefixes"] == []


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


def answering(body):
    def answer(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))

    return answer


LYING = answering(b'{"tokenizer": "another", "prefixes": [{"ids": [1, 2, 3], "hits": 9}]}')
NO_TEXT = answering(b'{"tokenizer": "\xff\xfe", "prefixes": []}')
DEEP = answering(b'{"tokenizer": "", "prefixes": [], "more": ' + b"[" * 100_000)


@pytest.mark.parametrize("answers", [(silent, endless, LYING), (NO_TEXT, DEEP, LYING)], ids=["slow", "malformed"])
def test_peers_that_are_silent_endless_or_wrong_do_not_keep_it_from_being_ready(model, tmp_path, answers):
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(peer(answer)) for answer in answers]
        server, load = stack.enter_context(starting(model, tmp_path, "--prefix-warmup-seconds", "2"))
        assert told(server, "http://peer.example:8001").status == 422
        assert told(server, *peers).json == {"peers": 3}
        load()
        server.wait_ready()
        assert "3 peers gave no usable answer" in server.output()
        assert cached(server, SYSTEM) == 0


def test_choices_count_once_and_nothing_is_noted_where_no_replica_asks(model):
    several = {"model": "tiny", "prompt": SYSTEM, "max_tokens": 2, "n": 4, "temperature": 1}
    for seconds, found in (("10", 1), ("0", 0)):
        with api_process(model, *ARGS, "--prefix-warmup-seconds", seconds, command=REAL) as server:
            assert server.ask("/v1/completions", several).status == 200
            assert server.ask("/prefixes", ops=True).json["prefixes"] == []
            assert server.ask("/v1/completions", several).status == 200
            assert [p["hits"] for p in server.ask("/prefixes", ops=True).json["prefixes"]] == [2.0] * found


def test_peers_come_too_late_once_those_that_were_named_are_read(model, tmp_path):
    asked = threading.Event()

    def asks(connection):
        asked.set()
        connection.recv(1)

    with peer(asks) as base, starting(model, tmp_path, "--prefix-warmup-seconds", "600") as (server, load):
        assert told(server, base).json == {"peers": 1}
        load()
        assert asked.wait(DEADLINE_S)
        late = told(server, base)
        assert (late.status, server.state()["phase"]) == (409, "warming")
