"""Every surface over one real model: the same answer to the same chat, its logprobs, one prefix cache for all."""

import sys

import anthropic
import ollama
import pytest

from fakes import checkpoints
from fakes.api_process import api_process

REAL = (sys.executable, "-m", "kvasir_runtime", "serve")
TEXT = "the operator watches the services; " * 12
CHAT = [{"role": "user", "content": TEXT}]
GREEDY = {"temperature": 0}

pytestmark = pytest.mark.xdist_group("server-surfaces-real")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")
    with api_process(model, "--kv-cache-tokens", "4096", "--device", "cpu", command=REAL) as running:
        yield running


@pytest.fixture
def client(server):
    with server.strict_openai() as made:
        yield made


@pytest.fixture
def llama(server):
    made = ollama.Client(server.base_url.removesuffix("/v1"))
    yield made
    made._client.close()


@pytest.fixture
def claude(server):
    url = server.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, _strict_response_validation=True) as made:
        yield made


def test_all_give_the_same_answer_and_share_the_cache(client, llama, claude):
    chat = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=12, **GREEDY)
    text, prompt_tokens = chat.choices[0].message.content, chat.usage.prompt_tokens
    response = client.responses.create(model="tiny", input=TEXT, max_output_tokens=12, **GREEDY)
    message = claude.messages.create(model="tiny", messages=CHAT, max_tokens=12, extra_body=GREEDY)
    local = llama.chat("tiny", CHAT, options={"num_predict": 12, **GREEDY})
    assert response.output_text == message.content[0].text == local.message.content == text
    assert response.usage.input_tokens == local.prompt_eval_count == prompt_tokens
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == prompt_tokens
    assert response.usage.input_tokens_details.cached_tokens > prompt_tokens - 32
    assert message.usage.cache_read_input_tokens > prompt_tokens - 32
    assert (
        response.usage.output_tokens == message.usage.output_tokens == local.eval_count == chat.usage.completion_tokens
    )


def test_logprobs_of_a_response(client):
    asked = {"model": "tiny", "input": TEXT, "max_output_tokens": 8, **GREEDY}
    plain = client.responses.create(**asked)
    assert plain.output[0].content[0].logprobs == []
    asked |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (part,) = client.responses.create(**asked).output[0].content
    assert b"".join(bytes(one.bytes) for one in part.logprobs).decode(errors="replace") == part.text
    assert all(len(one.top_logprobs) == 2 and one.logprob == one.top_logprobs[0].logprob for one in part.logprobs)
    events = list(client.responses.create(**asked, stream=True))
    told = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [one.token for one in told] == [one.token for one in part.logprobs]
    assert len(events[-1].response.output[0].content[0].logprobs) == len(part.logprobs)


@pytest.mark.parametrize("raw", [False, True])
def test_logprobs_of_ollama(llama, raw):
    options = {"num_predict": 6, **GREEDY}
    assert llama.generate("tiny", "the plan", raw=raw, options=options).logprobs is None
    whole = llama.generate("tiny", "the plan", raw=raw, options=options, logprobs=True, top_logprobs=2)
    assert len(whole.logprobs) == whole.eval_count - (whole.done_reason == "stop")
    assert all(one.logprob == one.top_logprobs[0].logprob for one in whole.logprobs)
    lines = llama.generate("tiny", "the plan", raw=raw, options=options, logprobs=True, top_logprobs=2, stream=True)
    assert [one.token for line in lines for one in line.logprobs or ()] == [one.token for one in whole.logprobs]
