"""Bodies with too many values, or numbers that are too large, in every API: refused early, never an internal error."""

import json
import sys
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from kvasir_runtime.frontend.protocol.validation import MAX_BRACKETS, MAX_NAMES

HERE = Path(__file__).resolve().parent.parent / "fakes"
MESSAGES = [{"role": "user", "content": "x"}]
BODIES = {
    "/v1/chat/completions": {"model": "tiny", "messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"model": "tiny", "prompt": "x", "max_tokens": 2},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": MESSAGES},
    "/v1/responses": {"model": "tiny", "input": "x", "max_output_tokens": 16},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "options": {"num_predict": 2}},
    "/api/generate": {"model": "tiny", "prompt": "x", "options": {"num_predict": 2}},
    "/tokenize": {"prompt": "x"},
}
NAMES = {f"k{number}": 1 for number in range(MAX_NAMES)}
NUMBER = int("9" * 400)
FLOODS = {
    "names": NAMES,
    "names in an object": {"metadata": NAMES},
    "a million stops": {"stop": ["x"] * 1_000_000},
    "a million ids": {"stop_token_ids": [1] * 1_000_000},
    "empty messages": {"messages": [{}] * (MAX_BRACKETS + 1)},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}] * (MAX_BRACKETS // 2)},
    "biases": {"logit_bias": {str(number): 1 for number in range(MAX_NAMES)}},
    "digits": {"metadata": [int("9" * 4000)] * 501},
    "fewer digits": {"metadata": [int("9" * 999)] * 15_000},
    "numbers of 25 digits": {"metadata": [int("9" * 25)] * 500_000},
}

pytestmark = pytest.mark.xdist_group("server-floods")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")
    options = ("--max-model-len", "4096", "--kv-cache-tokens", "16384")
    with api_process(folder, *options, command=(sys.executable, str(HERE / "serve_fake.py"))) as running:
        yield running


def message(answer):
    """Of an error, as OpenAI, Anthropic or Ollama write it."""
    error = answer.json["error"]
    return error if isinstance(error, str) else error["message"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("flood", FLOODS)
def test_too_many_values_are_refused_before_they_are_read(server, path, flood):
    """By counting bytes: what decodes and validates them holds the interpreter."""
    body = json.dumps({**BODIES[path], **FLOODS[flood]}).encode()
    answer = server.ask(path, body)
    assert answer.status == 400
    assert message(answer).startswith("The body has more than")


@pytest.mark.parametrize("path", BODIES)
def test_no_field_breaks_on_a_number_of_400_digits(server, path):
    """Every field that the API describes, and every one of Ollama's options."""
    schema = server.ask("/openapi.json").json
    described = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    if "$ref" in described:
        described = schema["components"]["schemas"][described["$ref"].rsplit("/", 1)[1]]
    fields = sorted(described["properties"])
    assert len(fields) > 1
    for name in fields:
        for value in (NUMBER, -NUMBER, [NUMBER], {"a": NUMBER}, {"1": NUMBER}):
            answer = server.ask(path, {**BODIES[path], name: value})
            assert answer.status in {200, 400, 404}, (name, value, answer.status, answer.body[:300])
    for name in ("num_predict", "temperature", "seed", "top_k", "top_p", "num_ctx") if path.startswith("/api") else ():
        answer = server.ask(path, {**BODIES[path], "options": {name: NUMBER}})
        assert answer.status in {200, 400}, (name, answer.status, answer.body[:300])
