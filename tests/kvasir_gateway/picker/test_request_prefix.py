"""A request's route hashes are those that its pod computes, whatever API and key it comes with."""

import json
import subprocess
import sys
import tracemalloc

import pytest

from kvasir_api import hashes, tenants
from kvasir_api.state import PrefixDigest, RuntimeState
from kvasir_gateway.picker import request_parser
from kvasir_gateway.picker.request_prefix import RequestPrefix

LONG = "the operator watches the services " * 30
SAID = [{"role": "system", "content": "s"}, {"role": "user", "content": LONG}]
OPEN = RuntimeState(model="m")
BY_KEY = RuntimeState(model="m", prefixes=PrefixDigest(by_key=True))
BY_HEADER = RuntimeState(model="m", prefixes=PrefixDigest(by_key=True, by_header="x-tenant"))
AS_A = {"authorization": "Bearer a"}


def prefix(body, path="/v1/chat/completions", headers=None):
    parsed = request_parser.parse_body(json.dumps({"model": "m", **body}).encode(), path)
    return RequestPrefix(parsed, path, headers or {}, body_bytes=1000)


def routes(messages=SAID, **salted):
    return hashes.route_hashes(hashes.request_text({"messages": messages}), model="m", **salted)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAID}),
        ("/v1/messages", {"system": "s", "messages": SAID[1:]}),
        ("/v1/responses", {"instructions": "s", "input": LONG}),
        ("/api/chat", {"messages": SAID}),
        ("/api/generate", {"system": "s", "prompt": LONG}),
    ],
)
def test_one_chat_has_one_prefix_in_every_api(path, body):
    found = prefix(body, path)
    assert found.route_hashes(OPEN) == routes()
    assert len(routes()) > 3
    assert found.num_tokens == pytest.approx(len(LONG) / 4, rel=0.05)


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": LONG}), ("/api/generate", {"prompt": LONG, "raw": True})]
)
def test_a_bare_prompt_is_hashed_as_it_is(path, body):
    assert prefix(body, path).route_hashes(OPEN) == hashes.route_hashes(LONG, model="m")


def test_a_prompt_with_an_emoji_takes_no_more_memory_than_its_body():
    """A held request keeps it, and is counted by the bytes of its body."""
    body = json.dumps({"model": "m", "prompt": "x" * (1 << 20) + "\U0001f600"}).encode()
    tracemalloc.start()
    try:
        parsed = request_parser.parse_body(body, "/v1/completions")
        found = RequestPrefix(parsed, "/v1/completions", {}, body_bytes=len(body))
        del parsed
        assert tracemalloc.get_traced_memory()[0] < 1.1 * len(body)
    finally:
        tracemalloc.stop()
    assert len(found.route_hashes(OPEN)) == 4096


def test_what_is_not_cached_has_no_prefix():
    found = prefix({"input": LONG}, "/v1/embeddings")
    assert (found.route_hashes(OPEN), found.num_tokens) == ((), 250.0)


@pytest.mark.parametrize(
    ("state", "headers", "salt"),
    [
        (OPEN, {}, b""),
        (OPEN, AS_A, b""),
        (BY_KEY, {}, b""),
        (BY_KEY, AS_A, tenants.salt_of_key(b"a")),
        (BY_KEY, {"x-api-key": "a"}, tenants.salt_of_key(b"a")),
        (BY_KEY, {"x-tenant": "t", **AS_A}, tenants.salt_of_key(b"a")),
        (BY_HEADER, {"x-tenant": "t", **AS_A}, tenants.salt_of_name("t")),
        (BY_HEADER, AS_A, tenants.salt_of_key(b"a")),
    ],
)
def test_the_salt_is_the_one_of_the_tenant_as_the_pod_tells_them_apart(state, headers, salt):
    assert prefix({"messages": SAID}, headers=headers).route_hashes(state) == routes(salt=salt)


def test_a_salt_of_the_body_separates_too():
    salted = prefix({"messages": SAID, "cache_salt": "x"}, headers=AS_A).route_hashes(BY_KEY)
    assert salted == routes(salt=tenants.salt_of_request(tenants.salt_of_key(b"a"), "x"))
    assert not set(salted) & set(routes(salt=tenants.salt_of_key(b"a")))


def test_the_name_is_the_first_one_of_the_pod():
    alias = prefix({"model": "alias", "messages": SAID})
    assert alias.route_hashes(OPEN) == routes()


@pytest.mark.parametrize("body", [{}, {"messages": 5}, {"messages": [None, 3]}, {"prompt": {"a": [1]}}, {"tools": "x"}])
def test_odd_bodies_are_for_the_pod_to_refuse(body):
    assert prefix(body).route_hashes(OPEN) == ()


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, 0),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9, "max_tokens": 12}, 9),
        ({"max_output_tokens": 3}, 3),
        ({"max_tokens": "7"}, 0),
        ({"max_tokens": -1}, 0),
    ],
)
def test_the_bound_of_the_answer_is_read(body, most):
    assert prefix(body).most_output_tokens == most


def test_a_long_prompt_is_hashed_once_for_all_pods_that_agree():
    found = prefix({"messages": [{"role": "user", "content": "word " * 80_000}]})
    first = found.route_hashes(OPEN)
    assert len(first) == (5 * 80_000 + 5) // 256
    assert found.route_hashes(RuntimeState(model="m", step=9)) is first


def test_the_picker_hashes_text_in_a_process_that_has_no_tokenizer():
    """Which would take a core for every few long prompts a second."""
    code = """
import sys
from kvasir_gateway import __main__, router
from kvasir_gateway.picker import app
print(*({"tokenizers", "transformers", "torch", "tiktoken", "sentencepiece", "kvasir_runtime"} & sys.modules.keys()))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout == "\n"
