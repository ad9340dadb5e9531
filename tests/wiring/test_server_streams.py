"""Answers of the real server as the real openai client sees them: whole, streamed, many at once, slow, gone."""

import asyncio
import json
import socket
from pathlib import Path

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import ApiProcess, api_process

PROMPT = "the operator watches the services and "

pytestmark = pytest.mark.xdist_group("server-streams")  # its processes are shared by the tests of this file


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model):
    with api_process(model, "--served-model-name", "tiny", "--served-model-name", "org/alias") as running:
        yield running


@pytest.fixture(scope="module")
def slow(model):
    """Its longest answer takes two minutes, so that a client leaves before the end of it."""
    with api_process(model, "--served-model-name", "tiny", faults={"step_s": 0.03}) as running:
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as made:
        yield made


def test_models_are_listed_under_every_name(client):
    assert [model.id for model in client.models.list()] == ["tiny", "org/alias"]
    assert client.models.retrieve("org/alias").object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.code == "model_not_found"


def test_a_whole_completion(client):
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=16)
    assert PROMPT.startswith(answer.choices[0].text.rstrip(" ")[:5])
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16
    assert answer.object == "text_completion"
    assert answer.system_fingerprint.startswith("kvasir-")


def test_a_streamed_completion_has_the_same_text(client):
    whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=30).choices[0].text
    chunks = list(client.completions.create(model="tiny", prompt=PROMPT, max_tokens=30, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert {chunk.choices[0].finish_reason for chunk in chunks[:-1]} == {None}
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_streamed_chat_begins_with_the_role_and_ends_with_usage(client):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
    stream = client.chat.completions.create(
        model="org/alias", messages=messages, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == ("assistant", "")
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 20
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 0
    assert {chunk.model for chunk in chunks} == {"org/alias"}
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=20)
    assert whole.choices[0].message.role == "assistant"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert streamed == whole.choices[0].message.content


def test_an_answer_can_be_sent_back_as_history(client):
    messages = [{"role": "user", "content": "hello"}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4)
    again = [*messages, answer.choices[0].message, {"role": "user", "content": "more"}]
    longer = client.chat.completions.create(model="tiny", messages=again, max_tokens=4)
    assert longer.usage.prompt_tokens > answer.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_and_choices_keep_their_index(client, stream):
    prompts = ["cache ", "engine "]
    made = client.completions.create(model="tiny", prompt=prompts, n=2, max_tokens=12, stream=stream)
    texts = dict.fromkeys(range(4), "")
    for part in made if stream else [made]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert texts[0].startswith("cache ")
    assert texts[2].startswith("engine ")


def test_token_ids_are_a_prompt(client):
    ids = [77, 78, 79]
    answer = client.completions.create(model="tiny", prompt=ids, max_tokens=6)
    assert answer.usage.prompt_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_ends_the_answer_and_the_work(server, client, stream):
    made = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=3000, stop=["ator wat", "never"], stream=stream
    )
    parts = list(made) if stream else [made]
    assert "".join(part.choices[0].text for part in parts) == "the oper"
    assert parts[-1].choices[0].finish_reason == "stop"
    server.until("the engine to be idle", lambda: server.state()["running"] == 0)


def test_the_stop_string_is_kept_on_request(client):
    answer = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=99, stop="ator", extra_body={"include_stop_str_in_output": True}
    )
    assert answer.choices[0].text == "the operator"


def test_wide_characters_are_never_split(client):
    prompt = "Grüße 你好世界 🙂🚀 "
    stream = client.completions.create(model="tiny", prompt=prompt, max_tokens=200, stream=True)
    texts = [chunk.choices[0].text for chunk in stream]
    assert not any("\ufffd" in text for text in texts[:-1])
    assert "".join(texts[:-1]).startswith(prompt)


def test_the_raw_stream_is_framed_as_server_sent_events(server: ApiProcess):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "stream": True}
    answer = server.ask("/v1/completions", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    events = answer.body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    assert all(event.startswith(b"data: {") for event in events[:-2])
    assert "usage" not in json.loads(events[0][6:])


def test_many_choices_and_tokens_per_step_make_one_text(model):
    with (
        api_process(model, faults={"per_step": 7, "cached": 3, "eos_after": 40}) as server,
        openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client,
    ):
        answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=99)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == 41
        assert answer.usage.prompt_tokens_details.cached_tokens == 3
        kept = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=99, extra_body={"ignore_eos": True})
        assert kept.usage.completion_tokens == 99
        longer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=99, extra_body={"min_tokens": 60})
        assert longer.usage.completion_tokens == 61


async def test_32_streams_at_once_are_whole_and_in_order(server: ApiProcess):
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:

        async def one(number: int) -> str:
            stream = await client.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": f"number {number} of the plan"}],
                max_tokens=150,
                stream=True,
                stream_options={"include_usage": True},
            )
            text, usage = "", None
            async for chunk in stream:
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                usage = chunk.usage
            assert usage is not None
            assert usage.completion_tokens == 150
            return text

        texts = await asyncio.gather(*(one(number) for number in range(32)))
    assert [f"number {number} of the plan" in text for number, text in enumerate(texts)] == [True] * 32
    server.until("all ended", lambda: server.state()["kv"]["pinned_tokens"] == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_blocks(slow: ApiProcess, stream):
    body = json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 4000, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with socket.create_connection(slow.http) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        slow.until("it to run", lambda: slow.state()["running"] == 1)
    slow.until("its blocks to be free", lambda: slow.state()["kv"]["pinned_tokens"] == 0)
    slow.until("the count", lambda: 'finish_reason="abort"' in slow.ask("/metrics").body.decode())


def test_a_reader_that_stops_reading_stalls_no_other(slow: ApiProcess):
    body = json.dumps({"model": "tiny", "prompt": PROMPT, "max_tokens": 4000, "n": 16, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    stopped = socket.socket()
    stopped.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stopped.connect(slow.http)
    try:
        stopped.sendall(head.encode() + b"\r\n\r\n" + body)
        slow.until("it to run", lambda: slow.state()["running"] == 16)
        with openai.OpenAI(base_url=slow.base_url, api_key="none", max_retries=0) as client:
            answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=64)
        assert answer.usage.completion_tokens == 64
    finally:
        stopped.close()
    slow.until("its blocks to be free", lambda: slow.state()["running"] == 0)


def test_what_is_measured_is_exposed(server: ApiProcess, client):
    client.completions.create(model="tiny", prompt=PROMPT, max_tokens=5)
    text = server.ask("/metrics").body.decode()
    for line in (
        'kvasir_ready{model_name="tiny"} 1.0',
        'kvasir_kv_capacity_tokens{model_name="tiny"} 8192.0',
        'kvasir_prompt_tokens_total{model_name="tiny"} 7.0',
        'kvasir_requests_total{finish_reason="length",model_name="tiny"}',
        'kvasir_time_to_first_token_seconds_count{model_name="tiny"}',
        'kvasir_inter_token_seconds_bucket{le="0.01",model_name="tiny"}',
    ):
        assert line in text, line
