"""Calls that are made while the model goes on: over HTTP, with the official client reading the stream."""

import json

import pytest

from fakes.scripted import scripted

TEMPLATE = (
    "{# <tool_call> #}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "clock"}}]
CHAT = [{"role": "user", "content": "plan"}]
CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
BLOCK = "<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n<|im_start|>assistant\n"

pytestmark = pytest.mark.xdist_group("server-interrupts")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupts")
    faults = {"step_s": 0.05, "pace": str(folder / "pace")}
    with scripted(folder, "--max-model-len", "4096", chat_template=TEMPLATE, faults=faults) as running:
        yield running


@pytest.fixture
def client(engine):
    with engine.server.strict_openai() as made:
        yield made


def results(engine, answer_id, call_id, content="noon"):
    body = {"results": [{"tool_call_id": call_id, "content": content}]}
    return engine.server.ask(f"/v1/chat/completions/{answer_id}/tool_results", body)


def injected(engine):
    lines = [json.loads(line) for line in engine.log.read_text().splitlines()]
    return [
        engine.encoder.decode(one["token_ids"], skip_special_tokens=False) for one in lines if one["type"] == "inject"
    ]


def read(engine, client, before_results=lambda: None):
    """The chunks of an answer whose first call is answered as soon as it was told; then the model writes at once."""
    pace = engine.script.with_name("pace")
    pace.touch()
    stream = client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        tools=TOOLS,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"async_tool_calls": True},
    )
    chunks, answered = [], None
    for chunk in stream:
        chunks.append(chunk)
        calls = chunk.choices[0].delta.tool_calls if chunk.choices else None
        if calls and calls[0].id is not None:
            before_results()
            answered = results(engine, chunk.id, calls[0].id)
            pace.unlink()
    return chunks, answered


def content(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_result_is_read_while_the_model_goes_on(engine, client):
    # For more than a minute, or until the result is there; a text goes on behind it as a message begins, without a
    # leading space.
    rest = "on-and-" * 250 + "on."
    engine.says(CALL + rest)
    chunks, answered = read(engine, client)
    assert (answered.status, answered.json["object"]) == (200, "chat.completion.tool_results")
    assert injected(engine)[-1] == BLOCK
    assert content(chunks) == rest
    assert chunks[-2].choices[0].finish_reason == "stop"
    prompt = len(engine.heard()["prompt"])
    assert chunks[-1].usage.prompt_tokens == prompt + len(engine.encoder.encode(BLOCK).ids)


def test_a_turn_that_ended_goes_on_when_its_result_comes(engine, client):
    engine.says(CALL)
    chunks, answered = read(engine, client, before_results=lambda: engine.says("It is noon."))
    assert answered.status == 200
    assert content(chunks) == "It is noon."
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert engine.prompt() == "clock;<|im_start|>user\nplan<|im_end|>\n<|im_start|>assistant\n" + CALL + BLOCK
    assert len({chunk.id for chunk in chunks}) == 1


def test_what_is_not_there_takes_no_results(engine, client):
    engine.says(f"{CALL} " + "on and on " * 20)
    chunks, _ = read(engine, client)
    ended = results(engine, chunks[0].id, "call_1")
    assert (ended.status, ended.error["code"]) == (404, "not_found")
    assert results(engine, "chatcmpl-none", "call_1").status == 404
    bad = engine.server.ask("/v1/chat/completions/chatcmpl-none/tool_results", {"results": []})
    assert (bad.status, bad.error["param"]) == (400, "results")
