"""Hostile requests to a real server: each is refused or served faithfully, at once, and nobody else notices.

Bodies that are deep, huge, mistyped or not JSON; heads that two servers would read differently; clients that send
slowly. While all of it happens a stream goes on beside them.
"""

import gzip
import json
import random
import socket
import sys
import time

import pytest

from fakes import checkpoints
from fakes.api_process import HERE, ApiProcess, api_process
from fakes.hostile_heads import BODY, COMPLETION, HEADS, LENGTH, START

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
LIMIT = 8 << 20
DEEP = 100_000

pytestmark = pytest.mark.xdist_group("server-hostile")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")
    command = (sys.executable, str(HERE / "serve_fake.py"))
    options = ("--max-body-bytes", str(LIMIT), "--max-model-len", "20000", "--kv-cache-tokens", "65536")
    with api_process(folder, *options, command=command) as running:
        yield running


def raw(base, **fields):
    return json.dumps({**base, **fields}).encode()


def with_text(field, text):
    """A body whose field is written by hand, as json.dumps would not."""
    return raw(COMPLETION)[:-1] + f', "{field}": {text}}}'.encode()


NESTED = b'{"a":' * DEEP + b"1" + b"}" * DEEP
BODIES = {
    "deep-arrays": ("/v1/completions", b"[" * DEEP + b"]" * DEEP, 400),
    "deep-objects": ("/v1/completions", NESTED, 400),
    "deep-in-a-field": ("/v1/completions", with_text("stop", "[" * DEEP + "]" * DEEP), 400),
    "deep-and-never-closed": ("/v1/completions", b'{"messages":' + b"[" * DEEP, 400),
    "deep-template-switch": (
        "/v1/chat/completions",
        raw(CHAT)[:-1] + b', "chat_template_kwargs": ' + NESTED + b"}",
        400,
    ),
    "number-1e400": ("/v1/completions", with_text("temperature", "1e400"), 400),
    "number-of-100k-digits": ("/v1/completions", with_text("seed", "9" * 100_000), 400),
    "fraction-of-100k-digits": ("/v1/completions", with_text("temperature", "0." + "1" * 100_000), 200),
    "negative-zero": ("/v1/completions", with_text("temperature", "-0.0"), 200),
    "nan": ("/v1/completions", with_text("temperature", "NaN"), 400),
    "infinity": ("/v1/completions", with_text("top_p", "-Infinity"), 400),
    "seed-of-65-bits": ("/v1/completions", raw(COMPLETION, seed=1 << 64), 400),
    "max-tokens-2-to-31": ("/v1/completions", raw(COMPLETION, max_tokens=1 << 31), 400),
    "a-million-choices": ("/v1/completions", raw(COMPLETION, n=10**6), 400),
    "best-of-many": ("/v1/completions", raw(COMPLETION, best_of=10**9), 400),
    "wide-beams": ("/v1/completions", raw(COMPLETION, n=10**9, use_beam_search=True), 400),
    "logprobs-100k": ("/v1/completions", raw(COMPLETION, logprobs=10**5), 400),
    "100k-stop-strings": ("/v1/completions", raw(COMPLETION, stop=["x"] * 100_000), 400),
    "a-stop-string-of-a-megabyte": ("/v1/completions", raw(COMPLETION, stop="x" * 1_000_000), 400),
    "100k-bad-words": ("/v1/completions", raw(COMPLETION, bad_words=["x"] * 100_000), 400),
    "100k-biases": ("/v1/completions", raw(COMPLETION, logit_bias={str(n): 1 for n in range(100_000)}), 400),
    "bias-of-a-huge-id": ("/v1/completions", raw(COMPLETION, logit_bias={"9" * 4000: 1}), 400),
    "a-huge-token-id": ("/v1/completions", raw(COMPLETION, prompt=[10**30]), 400),
    "a-negative-token-id": ("/v1/completions", raw(COMPLETION, prompt=[-1]), 400),
    "a-million-token-ids": ("/v1/completions", raw(COMPLETION, prompt=[1] * 1_000_000), 400),
    "a-million-prompts": ("/v1/completions", raw(COMPLETION, prompt=["x"] * 1_000_000), 400),
    "a-prompt-of-4-megabytes": ("/v1/completions", raw(COMPLETION, prompt="ab " * 1_400_000), 400),
    "an-empty-prompt": ("/v1/completions", raw(COMPLETION, prompt=""), 400),
    "200k-messages": ("/v1/chat/completions", raw(CHAT, messages=[{"role": "user", "content": "x"}] * 200_000), 400),
    "a-message-of-4-megabytes": (
        "/v1/chat/completions",
        raw(CHAT, messages=[{"role": "user", "content": "a " * 2_000_000}]),
        400,
    ),
    "30k-content-parts": (
        "/v1/chat/completions",
        raw(CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 30_000}]),
        200,
    ),
    "an-image-of-a-link-local-address": (
        "/v1/chat/completions",
        raw(
            CHAT,
            messages=[
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}
            ],
        ),
        400,
    ),
    "100k-unknown-fields": ("/v1/completions", raw(COMPLETION, **{f"f{n}": 1 for n in range(100_000)}), 400),
    "a-field-name-of-a-megabyte": ("/v1/completions", raw(COMPLETION, **{"f" * 1_000_000: 1}), 200),
    "a-model-name-of-a-megabyte": ("/v1/completions", raw(COMPLETION, model="m" * 1_000_000), 400),
    "a-chat-template": ("/v1/chat/completions", raw(CHAT, chat_template="{{ cycler.__init__.__globals__ }}"), 400),
    "a-template-switch-named-messages": (
        "/v1/chat/completions",
        raw(CHAT, chat_template_kwargs={"messages": "x"}),
        400,
    ),
    "a-template-switch-with-underscores": (
        "/v1/chat/completions",
        raw(CHAT, chat_template_kwargs={"__class__": "x"}),
        200,
    ),
    "duplicate-keys": ("/v1/completions", b'{"model":"none","model":"tiny","prompt":"x","max_tokens":1}', 200),
    "duplicate-keys-the-last-counts": ("/v1/completions", b'{"model":"tiny","prompt":"x","model":"none"}', 404),
    "bad-utf-8": ("/v1/completions", raw(COMPLETION).replace(b"hello", b"\xff\xfe\x80"), 400),
    "overlong-utf-8": ("/v1/completions", raw(COMPLETION).replace(b"hello", b"\xc0\xaf"), 400),
    "a-lone-surrogate": ("/v1/completions", raw(COMPLETION).replace(b"hello", b"\\ud800"), 400),
    "a-surrogate-as-bytes": ("/v1/completions", raw(COMPLETION).replace(b"hello", b"\xed\xa0\x80"), 400),
    "a-byte-order-mark": ("/v1/completions", b"\xef\xbb\xbf" + raw(COMPLETION), 400),
    "utf-16": ("/v1/completions", json.dumps(COMPLETION).encode("utf-16"), 400),
    "nul-and-controls": ("/v1/completions", raw(COMPLETION, prompt="a\x00\x01\x1b[2J\u202e\u0000b"), 200),
    "every-plane": ("/v1/completions", raw(COMPLETION, prompt="\U0001f600\U00020000\U000e0001\ufffd\uffff"), 200),
    "a-bare-control-in-a-string": ("/v1/completions", raw(COMPLETION).replace(b"hello", b"a\nb"), 400),
    "two-documents": ("/v1/completions", raw(COMPLETION) * 2, 400),
    "a-trailing-comma": ("/v1/completions", raw(COMPLETION)[:-1] + b",}", 400),
    "a-comment": ("/v1/completions", b"/* x */" + raw(COMPLETION), 400),
    "python": ("/v1/completions", str(COMPLETION).encode(), 400),
    "yaml": ("/v1/completions", b"model: tiny\nprompt: x\n", 400),
    "nothing": ("/v1/completions", b"", 400),
    "null": ("/v1/completions", b"null", 400),
    "spaces": ("/v1/completions", b" " * 1_000_000, 400),
    "spaces-around": ("/v1/completions", b" " * 100_000 + raw(COMPLETION) + b"\n" * 100_000, 200),
    "random-bytes": ("/v1/completions", random.Random(1).randbytes(100_000), 400),
    "a-schema-with-a-remote-reference": (
        "/v1/chat/completions",
        raw(
            CHAT,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"$ref": "http://169.254.169.254/"}},
            },
        ),
        400,
    ),
    "tokenize-a-megabyte-of-one-letter": ("/tokenize", raw({}, prompt="a" * 1_000_000), 200),
    "detokenize-a-huge-id": ("/detokenize", raw({}, tokens=[1 << 62]), 400),
}
TURN = {"role": "user", "content": "hi"}
KINDS = {
    "a-chat's-part": ("/v1/chat/completions", lambda kind: {"messages": [{**TURN, "content": [kind]}]}),
    "a-chat's-tool": ("/v1/chat/completions", lambda kind: {"messages": [TURN], "tools": [kind]}),
    "a-chat's-choice": ("/v1/chat/completions", lambda kind: {"messages": [TURN], "tool_choice": kind}),
    "a-chat's-format": ("/v1/chat/completions", lambda kind: {"messages": [TURN], "response_format": kind}),
    "a-prompt's-format": ("/v1/completions", lambda kind: {"prompt": "hi", "response_format": kind}),
    "an-item": ("/v1/responses", lambda kind: {"input": [kind]}),
    "an-item-with-text": ("/v1/responses", lambda kind: {"input": [{**TURN, **kind, "content": {}}]}),
    "an-item's-part": ("/v1/responses", lambda kind: {"input": [{**TURN, "content": [kind]}]}),
    "a-result's-part": (
        "/v1/responses",
        lambda kind: {"input": [{"type": "function_call_output", "call_id": "a", "output": [kind]}]},
    ),
    "a-response's-tool": ("/v1/responses", lambda kind: {"input": "hi", "tools": [kind]}),
    "a-response's-choice": ("/v1/responses", lambda kind: {"input": "hi", "tool_choice": kind}),
    "a-response's-format": ("/v1/responses", lambda kind: {"input": "hi", "text": {"format": kind}}),
    "counted-input": ("/v1/responses/input_tokens", lambda kind: {"input": [kind]}),
    "a-message's-block": ("/v1/messages", lambda kind: {"max_tokens": 2, "messages": [{**TURN, "content": [kind]}]}),
    "a-message's-system": ("/v1/messages", lambda kind: {"max_tokens": 2, "messages": [TURN], "system": [kind]}),
    "a-message's-tool": ("/v1/messages", lambda kind: {"max_tokens": 2, "messages": [TURN], "tools": [kind]}),
    "a-message's-choice": ("/v1/messages", lambda kind: {"max_tokens": 2, "messages": [TURN], "tool_choice": kind}),
    "an-ollama-tool": ("/api/chat", lambda kind: {"messages": [TURN], "tools": [kind]}),
    "an-ollama-part": ("/api/chat", lambda kind: {"messages": [{**TURN, "content": [kind]}]}),
    "a-tokenized-part": ("/tokenize", lambda kind: {"messages": [{**TURN, "content": [kind]}]}),
    "an-embedded-part": ("/v1/embeddings", lambda kind: {"messages": [{**TURN, "content": [kind]}]}),
}


@pytest.mark.parametrize(("path", "body", "status"), BODIES.values(), ids=BODIES)
def test_a_hostile_body_is_refused_or_served_faithfully(server: ApiProcess, path, body, status):
    answer = server.ask(path, body)
    assert answer.status == status, answer.body[:300]
    if status != 200:
        assert len(answer.body) < 4096, "an error repeats no more of a request than it must"
        assert answer.error["type"] == "invalid_request_error"
    assert server.ask("/v1/completions", COMPLETION).status == 200


@pytest.mark.parametrize("kind", [[], {}, ["message"], {"a": 1}], ids=str)
@pytest.mark.parametrize(("path", "body"), KINDS.values(), ids=KINDS)
def test_a_type_that_is_no_text_is_refused(server: ApiProcess, path, body, kind):
    answer = server.ask(path, {"model": "tiny", **body({"type": kind, "text": "hi"})})
    assert answer.status == 400, answer.body[:300]


@pytest.mark.parametrize(
    ("kind", "encoding", "status"),
    [
        ("application/json", None, 200),
        ("Application/JSON; charset=utf-8", None, 200),
        ("text/plain", None, 415),
        ("application/x-www-form-urlencoded", None, 415),
        ("multipart/form-data; boundary=x", None, 415),
        ("application/json, text/plain", None, 415),
        ("", None, 415),
        ("x" * 5000, None, 415),
        ("application/json", "gzip", 415),
        ("application/json", "br", 415),
        ("application/json", "identity, gzip", 415),
    ],
)
def test_a_body_of_another_kind_is_refused_unread(server: ApiProcess, kind, encoding, status):
    bomb = gzip.compress(b" " * 50_000_000)
    headers = {"content-type": kind} | ({"content-encoding": encoding} if encoding else {})
    answer = server.ask("/v1/completions", bomb if encoding else json.dumps(COMPLETION).encode(), headers=headers)
    assert answer.status == status
    if status != 200:
        assert answer.error["code"] == "unsupported_media_type"


def said(server: ApiProcess, data: bytes, *, more: bytes = b"") -> bytes:
    """What comes back on one connection until it is closed, or a whole document has come."""
    with socket.create_connection(server.http, timeout=60) as connection:
        try:
            connection.sendall(data)
            if more:
                connection.sendall(more)
        except OSError:
            pass  # refused while we still talk
        found = b""
        try:
            while part := connection.recv(65536):
                found += part
                if b"\r\n\r\n" in found and found.count(b"}") >= found.count(b"{") > 0:
                    break
        except OSError:
            pass
        return found


@pytest.mark.parametrize(("data", "status"), HEADS.values(), ids=HEADS)
def test_a_head_that_may_be_read_in_two_ways_is_refused_and_the_connection_closed(server: ApiProcess, data, status):
    answer = said(server, data)
    head, _, document = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), answer[:300]
    assert b"connection: close" in head.lower()
    assert answer.count(b"HTTP/1.1") == 1, "nothing behind it was taken for another request"
    assert json.loads(document)["error"]["type"] == "invalid_request_error"
    assert server.ask("/health").status == 200


def test_a_target_in_absolute_form_is_the_same_path(server: ApiProcess):
    answer = said(server, b"GET http://evil.example/v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"evil" not in answer


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../metrics",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "//v1/models",
        "/v1/models/" + "a" * 4000,
    ],
)
def test_a_strange_path_leads_nowhere(server: ApiProcess, path):
    answer = said(server, f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 405"))
    assert len(answer) < 8192


def test_slow_bodies_and_idle_connections_hold_up_no_other(server: ApiProcess):
    """Two hundred clients that send a byte and wait; a stream beside them comes to its end, and so do others."""
    slow = [socket.create_connection(server.http, timeout=60) for _ in range(200)]
    try:
        for number, connection in enumerate(slow):
            connection.sendall((START + LENGTH + b"\r\n" + BODY[:3]) if number % 2 else START[:20])
        streamed = server.ask("/v1/completions", COMPLETION | {"stream": True, "max_tokens": 50, "ignore_eos": True})
        assert streamed.body.endswith(b"data: [DONE]\n\n")
        for connection in slow[1::2]:
            connection.sendall(BODY[3:])
        for connection in slow[1::2]:
            assert connection.recv(12) == b"HTTP/1.1 200"
    finally:
        for connection in slow:
            connection.close()
    assert server.ask("/v1/completions", COMPLETION).status == 200


def test_a_body_that_ends_early_is_no_request(server: ApiProcess):
    with socket.create_connection(server.http, timeout=60) as connection:
        connection.sendall(START + LENGTH + b"\r\n" + BODY[:5])
    server.until("nobody is served", lambda: server.ask("/load").json["server_load"] == 0)


def test_hostile_bodies_do_not_hold_up_a_stream(server: ApiProcess):
    """A stream is read while the worst of the corpus is sent beside it; it neither breaks nor loses a token."""
    body = raw(COMPLETION, stream=True, max_tokens=400, ignore_eos=True, return_token_ids=True)
    with socket.create_connection(server.http, timeout=60) as connection:
        connection.sendall(START + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        for name in ("deep-objects", "200k-messages", "a-million-token-ids", "100k-biases", "100k-unknown-fields"):
            path, hostile, status = BODIES[name]
            assert server.ask(path, hostile).status == status
        found, deadline = b"", time.monotonic() + 60
        while b"[DONE]" not in found and time.monotonic() < deadline:
            found += connection.recv(65536)
    ids = [
        token
        for line in found.split(b"\n")
        if line.startswith(b"data: {")
        for choice in json.loads(line[6:])["choices"]
        for token in choice["token_ids"]
    ]
    assert len(ids) == 400
