"""`/v1/messages` through the official client with strict validation: blocks, events, counts, reasons, errors."""

import time

import anthropic
import pytest

from fakes.api_process import JSON
from fakes.scripted import scripted

ARGS = ("--api-key", "k", "--max-model-len", "512")
CHAT = [{"role": "user", "content": "the plan"}]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}
SCREENSHOT = [
    *CHAT,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]},
]

pytestmark = pytest.mark.xdist_group("server-messages")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("messages")
    faults = {"cached": 3, "step_s": 0.2, "pace": str(folder / "pace")}
    with scripted(folder, *ARGS, faults=faults) as running:
        yield running


@pytest.fixture
def client(engine):
    base_url = engine.server.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base_url, api_key="k", max_retries=0, _strict_response_validation=True) as made:
        yield made


def create(client, messages=CHAT, *, max_tokens=100, extra=None, **fields):
    return client.messages.create(
        **{"model": "tiny", "messages": messages, **fields}, max_tokens=max_tokens, extra_body=extra or {}
    )


def test_a_whole_message(engine, client):
    count = engine.says("the operator watches")
    answer = create(client, system="be brief")
    assert answer._request_id, "the client finds it where Anthropic has it"
    assert (
        engine.prompt()
        == "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nthe plan<|im_end|>\n<|im_start|>assistant\n"
    )
    (block,) = answer.content
    assert (block.type, block.text) == ("text", "the operator watches")
    assert (answer.role, answer.model, answer.stop_reason, answer.stop_sequence) == (
        "assistant",
        "tiny",
        "end_turn",
        None,
    )
    assert answer.id.startswith("msg_")
    assert answer.usage.input_tokens == len(engine.heard()["prompt"]) - 3
    assert answer.usage.cache_read_input_tokens == 3
    assert answer.usage.output_tokens == count + 1, "the token that ends it counts"


def test_events_build_the_same_message(engine, client):
    engine.says("the operator watches")
    with client.messages.stream(model="tiny", messages=CHAT, max_tokens=100) as stream:
        events = [event for event in stream if event.type in RAW]
        streamed = stream.get_final_message()
    kinds = [event.type for event in events]
    assert events[0].message.usage.output_tokens == 0
    whole = create(client)
    assert streamed.content[0].text == whole.content[0].text
    assert streamed.stop_reason == whole.stop_reason
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.usage.input_tokens == whole.usage.input_tokens
    deltas = len(kinds) - 5
    assert deltas > 3
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


RAW = {
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
}


def test_nothing_said_is_an_empty_block(engine, client):
    engine.says("x")
    with client.messages.stream(model="tiny", messages=CHAT, max_tokens=9, stop_sequences=["x"]) as stream:
        assert [block.text for block in stream.get_final_message().content] == [""]
    assert create(client, stop_sequences=["x"]).content[0].text == ""


def test_why_it_ended(engine, client):
    engine.says("the operator watches")
    cut = create(client, max_tokens=2)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    stopped = create(client, stop_sequences=["zebra", " watch"])
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == (
        "stop_sequence",
        " watch",
        "the operator",
    )
    engine.says("")
    full = create(client, max_tokens=1000)
    assert full.stop_reason == "model_context_window_exceeded"
    assert full.usage.output_tokens == 512 - len(engine.heard()["prompt"])


@pytest.mark.parametrize(
    ("field", "value", "sampled"),
    [
        ("temperature", 0.25, {"temperature": 0.25}),
        ("top_p", 0.5, {"top_p": 0.5}),
        ("top_k", 7, {"top_k": 7}),
    ],
)
def test_sampling_reaches_the_engine(engine, client, field, value, sampled):
    engine.says("a")
    create(client)
    default = engine.heard()["sampling"]
    create(client, extra={field: value})
    changed = engine.heard()["sampling"]
    assert {k: v for k, v in changed.items() if v != default.get(k) and k != "seed"} == sampled


def test_an_unfinished_answer_is_continued(engine, client):
    engine.says("b")
    create(client, messages=[*CHAT, {"role": "assistant", "content": "it is a"}])
    assert engine.prompt().endswith("<|im_start|>assistant\nit is a")


def test_blocks_and_system_blocks_are_joined(engine, client):
    engine.says("b")
    blocks = [{"type": "text", "text": "one "}, {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}]
    create(client, messages=[{"role": "user", "content": blocks}], system=blocks, metadata={"user_id": "u"})
    assert engine.prompt().startswith("<|im_start|>system\none two<|im_end|>\n<|im_start|>user\none two<|im_end|>\n")


def test_tokens_are_counted_as_they_are_sent(engine, client):
    engine.says("b")
    counted = client.messages.count_tokens(model="tiny", messages=CHAT, system="be brief")
    create(client, system="be brief")
    assert counted.input_tokens == len(engine.heard()["prompt"])
    assert client.messages.count_tokens(model="tiny", messages=CHAT).input_tokens < counted.input_tokens


def ask(engine, body, path="/v1/messages", **headers):
    return engine.server.ask(path, body, headers={**JSON, "x-api-key": "k", **headers})


LEAST = {"model": "tiny", "messages": CHAT, "max_tokens": 9}


@pytest.mark.parametrize(
    ("fields", "status", "kind", "named"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"temperature": 1.5}, 400, "invalid_request_error", "temperature"),
        ({"top_k": -1}, 400, "invalid_request_error", "top_k"),
        ({"stop_sequences": "a"}, 400, "invalid_request_error", "stop_sequences"),
        ({"stop_sequences": ["a"] * 17}, 400, "invalid_request_error", "stop_sequences"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, 400, "invalid_request_error", "budget_tokens"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"messages": [{"role": "user", "content": "the " * 5000}]}, 400, "invalid_request_error", "512"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "invalid_request_error", "image; only text"),
        ({"messages": SCREENSHOT}, 400, "invalid_request_error", "image; only text"),
    ],
)
def test_errors_are_anthropics_and_name_the_field(engine, fields, status, kind, named):
    answer = ask(engine, {**LEAST, **fields})
    assert answer.status == status, answer.body
    assert answer.json["type"] == "error"
    assert answer.json["error"]["type"] == kind
    assert named in answer.json["error"]["message"]
    if named not in {"max_tokens", "temperature", "top_k", "stop_sequences", "512"} and "thinking" not in fields:
        least = {k: v for k, v in LEAST.items() if k != "max_tokens"}
        assert ask(engine, {**least, **fields}, "/v1/messages/count_tokens").json == answer.json


def test_a_long_prompt_is_refused_in_the_words_that_clients_look_for(client):
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: .* 512 tokens"):
        create(client, [{"role": "user", "content": "the " * 5000}])


def test_models_are_listed_for_the_client(client):
    (model,) = client.models.list()
    assert (model.id, model.type, model.max_input_tokens) == ("tiny", "model", 512)
    assert client.models.retrieve("tiny") == model
    assert abs(model.created_at.timestamp() - time.time()) < 3600


def test_the_client_raises_its_own_errors(engine, client):
    with pytest.raises(anthropic.BadRequestError, match="top_k"):
        create(client, extra={"top_k": -1})
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        create(client, model="other")
    with (
        anthropic.Anthropic(base_url=str(client.base_url), api_key="no", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        create(stranger)
    assert engine.server.ask("/v1/messages", LEAST).json["error"]["type"] == "authentication_error"
    assert engine.server.ask("/v1/messages/batches", method="GET", headers={"x-api-key": "k"}).json["type"] == "error"


def test_an_abort_is_an_error_event(engine, client):
    engine.says("")
    engine.script.with_name("pace").touch()  # the answer lasts for more than a minute
    stream = create(client, max_tokens=400, stream=True)
    answer_id = next(stream).message.id
    aborted = engine.server.ask("/abort_requests", {"request_ids": [answer_id]}, headers={**JSON, "x-api-key": "k"})
    assert aborted.json == {"num_aborted": 1}
    with pytest.raises(anthropic.APIStatusError, match="aborted"):
        list(stream)
    engine.script.with_name("pace").unlink()
