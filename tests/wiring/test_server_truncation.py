"""No API cuts a prompt in silence: one that does not fit is refused, or its answer says that it was cut.

The same text of any length goes to each API of a real server. An answer counts every token of it.
"""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import checkpoints
from fakes.api_process import HERE, ApiProcess, api_process

CONTEXT = 192

pytestmark = pytest.mark.xdist_group("server-truncation")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")
    command = (sys.executable, str(HERE / "serve_fake.py"))
    with api_process(folder, "--max-model-len", str(CONTEXT), command=command) as running:
        yield running


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")
    command = (sys.executable, "-m", "kvasir_runtime", "serve")
    with api_process(folder, "--max-model-len", str(CONTEXT), command=command) as running:
        yield running


def chat(text):
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]}


APIS = {
    "/v1/completions": (
        lambda text: {"model": "tiny", "prompt": text, "max_tokens": 1},
        lambda answer: answer["usage"]["prompt_tokens"],
    ),
    "/v1/chat/completions": (
        lambda text: chat(text) | {"max_tokens": 1},
        lambda answer: answer["usage"]["prompt_tokens"],
    ),
    "/v1/responses": (
        lambda text: {"model": "tiny", "input": text, "max_output_tokens": 1},
        lambda answer: answer["usage"]["input_tokens"],
    ),
    "/v1/messages": (
        lambda text: chat(text) | {"max_tokens": 1},
        lambda answer: answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"],
    ),
    "/api/chat": (
        lambda text: chat(text) | {"stream": False, "options": {"num_predict": 1, "num_ctx": 64}},
        lambda answer: answer["prompt_eval_count"],
    ),
    "/api/generate": (
        lambda text: {"model": "tiny", "prompt": text, "stream": False, "options": {"num_predict": 1}},
        lambda answer: answer["prompt_eval_count"],
    ),
}
LENGTHS = st.integers(1, 400) | st.sampled_from(range(CONTEXT // 2 - 12, CONTEXT // 2 + 4))


def expected(server: ApiProcess, path: str, text: str) -> int:
    """Tokens of the whole prompt, by another route."""
    body = {"prompt": text} if path == "/v1/completions" else {"messages": chat(text)["messages"]}
    return server.ask("/tokenize", body).json["count"]


@pytest.mark.parametrize("path", APIS)
@given(words=LENGTHS)
@settings(max_examples=40, deadline=None)
def test_a_prompt_is_computed_whole_or_refused(server: ApiProcess, path, words):
    body, counted = APIS[path]
    text = " ".join(["the"] * words)
    answer, tokens = server.ask(path, body(text)), expected(server, path, text)
    if tokens + 1 > CONTEXT:
        assert answer.status == 400, "what does not fit is refused"
        assert str(tokens) in answer.body.decode()
    else:
        assert answer.status == 200, answer.body
        assert counted(answer.json) == tokens


@pytest.mark.parametrize(
    ("path", "field", "fits", "cut"), [("/api/embed", "input", None, [0]), ("/api/embeddings", "prompt", None, True)]
)
@given(words=LENGTHS)
@settings(max_examples=25, deadline=None)
def test_a_vector_says_that_its_text_was_cut(embedder: ApiProcess, path, field, fits, cut, words):
    text = " ".join(["the"] * words)
    tokens = expected(embedder, "/v1/completions", text)
    answer = embedder.ask(path, {"model": "tiny", field: text})
    assert answer.status == 200
    assert answer.json.get("truncated") == (cut if tokens > CONTEXT else fits)
    plain = embedder.ask("/v1/embeddings", {"model": "tiny", "input": text})
    assert plain.status == (400 if tokens > CONTEXT else 200)
