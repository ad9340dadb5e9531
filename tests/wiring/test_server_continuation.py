"""A stream that one real server began and another one ends: together the bytes of a stream that nothing disturbed."""

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from functools import partial

import pytest

from fakes import checkpoints, continuations
from fakes.api_process import api_process
from fakes.checkpoints import Shape
from fakes.continuations import CASES, CHAT, COMMENT, KEY, MANY, REAL, long, same
from kvasir_api.ops_tokens import Signer, new_private_key, public_key
from kvasir_api.sealed_keys import keys_digest, sealed
from kvasir_kube.state_reader import StateReader
from kvasir_runtime.server.continuation_keys import parsed

pytestmark = pytest.mark.xdist_group("server-continuation")  # its processes are shared by the tests of this file


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.write(tmp_path_factory.mktemp("models") / "tiny", Shape(seed=4))


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    return continuations.options(keys)


@pytest.fixture(scope="module")
def first(model, options):
    with api_process(model, *options, command=REAL) as running:
        yield running


@pytest.fixture(scope="module")
def second(model, options):
    with api_process(model, *options, command=REAL) as running:
        yield running


class Stream:
    """One streamed request, read event by event. events: whole ones with their blank line; comments are events."""

    def __init__(self, server, path, body, *, pieces=False, key="none") -> None:
        self._connection = http.client.HTTPConnection(*server.http, timeout=60)
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        headers |= {"x-kvasir-continuation": "pieces"} if pieces else {}
        self._connection.request("POST", path, json.dumps({"model": "tiny", "stream": True, **body}), headers)
        self.events = []

    def begin(self) -> "Stream":
        """Up to the head of the response."""
        self._response = self._connection.getresponse()
        if self._response.status != 200:
            refused = self._response.read()
            self._connection.close()
            raise AssertionError(refused)
        return self

    def next(self) -> bytes:
        """The next event; empty at the end."""
        lines = []
        while (line := self._response.readline()).strip():
            lines.append(line)
        if lines:
            self.events.append(b"".join(lines) + b"\n")
            return self.events[-1]
        return b""

    def read(self) -> "Stream":
        """All of it."""
        while self.next():
            pass
        self._connection.close()
        return self

    @property
    def answer(self) -> bytes:
        """Without comments."""
        return b"".join(event for event in self.events if not event.startswith(b":"))

    @property
    def token(self) -> str:
        """Of its comments, those that were joined by the server already included."""
        whole = [b"".join(COMMENT.findall(event)).decode() for event in self.events if event.startswith(b": kvasir")]
        return ".".join(whole)


@pytest.mark.parametrize("case", CASES)
def test_a_stream_goes_on_at_another_server_wherever_it_was_cut(first, second, case):
    path, body = CASES[case]
    # Without a seed the end may be drawn at once; that leaves nothing to cut.
    for _ in range(20 if "seed" not in body else 1):
        whole = Stream(first, path, body, pieces=True).begin().read()
        ends = [place + 1 for place, event in enumerate(whole.events) if COMMENT.search(event)]
        if len(ends) > 1:
            break
    assert len(ends) > 1
    for end in {ends[0], ends[1], ends[len(ends) // 3], ends[len(ends) // 2], ends[-2], ends[-1]}:
        cut = Stream.__new__(Stream)
        cut.events = whole.events[:end]
        rest = Stream(second, path, body | {"continuation": cut.token}).begin().read()
        assert same(cut.answer + rest.answer) == same(whole.answer), end
    if case != "no seed" and not path.endswith(("responses", "messages")):
        assert same(Stream(second, path, body).begin().read().answer) == same(whole.answer), (
            "nor do pieces change anything"
        )


def test_streams_that_a_drain_ends_go_on_at_another_server(model, options, second):
    """Each gets its token before the error, and the answer is whole behind it."""
    continued = 0
    while not continued:  # all may have ended where this process was late
        begun = drained(model, options)
        for case, stream in begun.items():
            path, body = CASES[case]
            if stream.token:
                continued += 1
                place = next(place for place, event in enumerate(stream.events) if COMMENT.search(event))
                assert b"shutting down" in b"".join(stream.events[place:])
                token, stream.events = stream.token, stream.events[:place]
                rest = Stream(second, path, long(body) | {"continuation": token}).begin().read()
                stream.events += rest.events
            if "seed" in body or body.get("temperature") == 0:
                assert same(stream.answer) == same(Stream(second, path, long(body)).begin().read().answer), case


def drained(model, options):
    """Streams of every kind to their ends, of a server that ends while they run."""
    with api_process(model, *options, command=REAL) as server:
        engine = server.engine_pid
        os.kill(engine, signal.SIGSTOP)  # so that all begin together, and none ends before it is drained
        begun = {case: Stream(server, path, long(body)) for case, (path, body) in CASES.items()}
        os.kill(engine, signal.SIGCONT)
        for stream in begun.values():
            stream.begin()
        os.kill(engine, signal.SIGSTOP)
        readers = [threading.Thread(target=stream.read) for stream in begun.values()]
        for reader in readers:
            reader.start()
        server.signal()
        for reader in readers:
            reader.join(60)
        with contextlib.suppress(ProcessLookupError):  # it was killed already
            os.kill(engine, signal.SIGCONT)
        assert server.wait() == 0
    return begun


def presented(server, token, body, key):
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = {"model": "tiny", "stream": True, **body, "continuation": token}
    return server.ask("/v1/chat/completions", request, headers=headers)


def refused(server, token, body, key="a"):
    answer = presented(server, token, body, key)
    assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "continuation", "invalid_continuation")
    return answer.error["message"]


def test_what_is_no_token_of_this_request_is_refused_with_the_reason(tmp_path):
    """Every other server is alike but for one thing."""
    (tmp_path / "keys").write_text(f"{KEY}\n")
    (tmp_path / "others").write_text("another key of many characters\n")
    tiny = checkpoints.write(tmp_path / "tiny", Shape(seed=1))
    tuned = checkpoints.write(tmp_path / "tuned", Shape(seed=2))
    given = ("--served-model-name", "tiny", "--api-key", "a", "--api-key", "b")
    signed = (*given, "--continuation-key-file", str(tmp_path / "keys"))
    with (
        api_process(tiny, *signed, faults={"step_s": 0.001}) as server,
        api_process(tuned, *signed) as tuned_server,
        api_process(tiny, *given, "--continuation-key-file", str(tmp_path / "others")) as foreign,
        api_process(tiny, *given) as plain,
    ):
        stream = Stream(server, "/v1/chat/completions", CHAT | {"max_tokens": 8}, pieces=True, key="a").begin().read()
        token = stream.token
        whole = presented(server, token, CHAT | {"max_tokens": 8}, "a")
        assert (whole.status, whole.body.count(b"data:")) == (200, 2), "the end alone is left: usage, and the mark"
        damaged = "damaged, or of a server with another key"
        same = CHAT | {"max_tokens": 8}
        assert damaged in refused(server, token[:-1], same)
        assert damaged in refused(server, token[:40], same)
        for place in (0, 30, len(token) // 2, len(token) - 3):
            other = "A" if token[place] != "A" else "B"
            assert damaged in refused(server, token[:place] + other + token[place + 1 :], same)
        pieces = token.split(".")
        assert damaged in refused(server, ".".join([pieces[0], *pieces[2:]]), same)
        assert damaged in refused(server, "é.\u0000", same)
        assert damaged in refused(foreign, token, same)
        assert "no key for them" in refused(plain, token, same)
        assert "another model" in refused(tuned_server, token, same)
        assert "another tenant" in refused(server, token, same, key="b")
        assert "another request" in refused(server, token, same | {"temperature": 0.5})
        assert "another request" in refused(server, token, same | {"messages": MANY})
        assert "Only a stream" in refused(server, token, same | {"stream": False, "stream_options": None})
        search = {"use_beam_search": True, "n": 2, "temperature": 0}
        assert "Only a stream" in refused(server, token, same | search)
        answer = presented(server, 5, same, "a")
        assert (answer.status, answer.error["param"]) == (400, "continuation")


async def test_keys_that_an_operator_sends_are_as_good_as_those_of_a_file(model, options, second, tmp_path):
    private, place = new_private_key(os.urandom), options.index("--continuation-key-file")
    (tmp_path / "public").write_text(public_key(private))
    others = (*options[:place], *options[place + 2 :], "--host", "127.0.0.2", "--ops-key-file", str(tmp_path))
    path, body = CASES["drawn"]
    with api_process(model, *others, command=REAL) as server:
        assert not Stream(server, path, body, pieces=True).begin().read().token, "it has no key yet"
        early = presented(server, "token", body, "none")
        assert (early.status, early.error["code"]) == (503, "no_continuation_keys"), "another replica may have them"
        keys, before = parsed([KEY.encode()]), server.state()
        base, instance = f"http://{server.ops[0]}:{server.ops[1]}", before["instance"]
        signer = Signer(private, wall=time.time, random=os.urandom)
        text = sealed(keys, before["sealing_key"], instance)
        async with StateReader() as reader:
            give = partial(reader.give_keys, base, deadline_s=60.0)
            sign = partial(signer.authorization, instance)
            assert not await give(text)
            assert not await give(sealed(keys, before["sealing_key"], "another"), sign=sign)
            assert server.state()["continuation_keys"] == ""
            assert await give(text, sign=sign)
        assert server.state()["continuation_keys"] == keys_digest(keys)
        assert KEY not in server.output()
        whole = Stream(server, path, body, pieces=True).begin().read()
    ends = [place + 1 for place, event in enumerate(whole.events) if COMMENT.search(event)]
    cut = Stream.__new__(Stream)
    cut.events = whole.events[: ends[len(ends) // 2]]
    rest = Stream(second, path, body | {"continuation": cut.token}).begin().read()
    assert same(cut.answer + rest.answer) == same(whole.answer)


def test_a_server_with_a_file_of_keys_takes_no_others(second):
    assert second.state()["sealing_key"] == second.state()["continuation_keys"] == ""
    refused = second.ask("/continuation_keys?sealed=x", ops=True, method="POST")
    assert (refused.status, "from a file" in refused.json["error"]) == (422, True)
