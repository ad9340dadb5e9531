"""`/v1/responses` through the official client with strict validation: items, events, conversations, what is kept."""

import json
import threading

import openai
import pydantic
import pytest

from fakes.api_process import JSON
from fakes.scripted import scripted

ARGS = ("--max-model-len", "2048")
ASKED = "<|im_start|>user\n{}<|im_end|>\n"
OPENED = "<|im_start|>assistant\n"

pytestmark = pytest.mark.xdist_group("server-responses")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with scripted(tmp_path_factory.mktemp("responses"), *ARGS, faults={"cached": 3, "step_s": 0.002}) as running:
        yield running


@pytest.fixture
def client(engine):
    with engine.server.strict_openai() as made:
        yield made


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Its longest answer takes three minutes, so that what is done meanwhile comes before its end."""
    with scripted(tmp_path_factory.mktemp("slow"), *ARGS, faults={"step_s": 0.1}) as running:
        running.says("")
        yield running


@pytest.fixture
def slow_client(slow):
    with slow.server.strict_openai() as made:
        yield made


def create(client, text="the plan", **fields):
    return client.responses.create(model="tiny", input=text, **fields)


def test_a_whole_response(engine, client):
    count = engine.says("the operator watches")
    answer = create(client, instructions="be brief", metadata={"a": "b"}, temperature=0.5)
    assert engine.prompt() == "<|im_start|>system\nbe brief<|im_end|>\n" + ASKED.format("the plan") + OPENED
    assert answer.output_text == "the operator watches"
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert (answer.status, answer.object, answer.model, answer.error) == ("completed", "response", "tiny", None)
    assert answer.usage.input_tokens == len(engine.heard()["prompt"])
    assert answer.usage.input_tokens_details.cached_tokens == 3
    assert answer.usage.output_tokens == count + 1
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert (answer.instructions, answer.metadata, answer.temperature) == ("be brief", {"a": "b"}, 0.5)
    assert answer.completed_at >= answer.created_at
    assert client.responses.retrieve(answer.id) == answer


def test_events_are_numbered_and_end_in_the_response(engine, client):
    engine.says("the operator watches")
    events = list(create(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * len(deltas),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert len(deltas) > 3
    assert "".join(event.delta for event in deltas) == events[-4].text == "the operator watches"
    assert events[0].response.status == "in_progress"
    assert events[0].response.output == []
    item = events[-2].item
    assert {event.item_id for event in deltas} == {item.id}
    assert events[-1].response.output == [item]
    assert client.responses.retrieve(events[0].response.id) == events[-1].response
    with client.responses.stream(model="tiny", input="the plan") as stream:
        assert stream.until_done().get_final_response().output_text == "the operator watches"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_is_incomplete(engine, client, stream):
    engine.says("the operator watches")
    answer = create(client, max_output_tokens=2, stream=stream)
    if stream:
        last = list(answer)[-1]
        assert last.type == "response.incomplete"
        answer = last.response
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output[0].status == "incomplete"
    assert answer.usage.output_tokens == 2


def test_nothing_said_is_an_empty_message(engine, client):
    engine.script.write_text("[0]")  # a special token, which is not shown
    assert create(client).output[0].content[0].text == ""
    assert list(create(client, stream=True))[-1].response.output[0].content[0].text == ""


def test_a_conversation_goes_on_from_its_last_response(engine, client):
    engine.says("first")
    one = create(client, "a", instructions="only then")
    engine.says("second")
    two = create(client, "b", previous_response_id=one.id)
    assert (
        engine.prompt() == ASKED.format("a") + "<|im_start|>assistant\nfirst<|im_end|>\n" + ASKED.format("b") + OPENED
    )
    assert two.previous_response_id == one.id
    engine.says("third")
    three = list(create(client, "c", previous_response_id=two.id, stream=True))[-1].response
    assert engine.prompt().count("<|im_start|>") == 6
    other = create(client, "d", previous_response_id=one.id)
    assert engine.prompt().count("<|im_start|>") == 4, "a conversation may fork"
    listed = client.responses.input_items.list(three.id, order="asc")
    texts = [item.content[0].text for item in listed]
    assert texts == ["a", "first", "b", "second", "c"]
    newest = client.responses.input_items.list(three.id, limit=2)
    assert [item.content[0].text for item in newest.data] == ["c", "second"]
    assert (newest.has_more, len(list(newest))) == (True, 5), "the client requests the next pages"
    counted = client.responses.input_tokens.count(model="tiny", input="d", previous_response_id=one.id)
    assert counted.input_tokens == other.usage.input_tokens


def test_items_are_messages(engine, client):
    engine.says("x")
    create(
        client,
        [
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
            },
            {"role": "user", "content": "v"},
        ],
    )
    turns = [("system", "d"), ("user", "u"), ("assistant", "a"), ("user", "v")]
    assert engine.prompt() == "".join(f"<|im_start|>{r}\n{t}<|im_end|>\n" for r, t in turns) + OPENED


@pytest.mark.parametrize(
    ("fields", "sampled"),
    [
        ({"temperature": 0.25}, {"temperature": 0.25}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"max_output_tokens": 7}, {"max_tokens": 7}),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"logprobs": 2}),
    ],
)
def test_sampling_reaches_the_engine(engine, client, fields, sampled):
    engine.says("a")
    create(client)
    default = engine.heard()["sampling"]
    create(client, **fields)
    changed = engine.heard()["sampling"]
    assert {k: v for k, v in changed.items() if v != default.get(k) and k != "seed"} == sampled


def test_the_client_parses_what_it_requests(engine, client):
    class Place(pydantic.BaseModel):
        city: str

    engine.says('{"city": "x"}')
    answer = client.responses.parse(model="tiny", input="where", text_format=Place)
    assert answer.output_parsed == Place(city="x")
    assert "city" in json.dumps(engine.heard()["sampling"]["grammar"])


def test_what_does_not_fit_is_cut_only_where_asked(engine, client):
    engine.says("x")
    turns = [
        {"role": role, "content": f"{place} " + "plan " * 80} for place in range(9) for role in ("user", "assistant")
    ]
    long = [*turns, {"role": "user", "content": "last"}]
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, long)
    assert caught.value.code == "context_length_exceeded"
    answer = create(client, long, truncation="auto", instructions="stay")
    prompt = engine.prompt()
    assert prompt.startswith("<|im_start|>system\nstay<|im_end|>\n<|im_start|>user\n")
    assert prompt.endswith(ASKED.format("last") + OPENED)
    kept = prompt.count("<|im_start|>user") - 1
    assert 0 < kept < 9
    one_turn = client.responses.input_tokens.count(model="tiny", input=turns[:2]).input_tokens
    assert answer.usage.input_tokens + one_turn > 2048 - one_turn, "no more is left out than must be"
    assert answer.truncation == "auto"


def test_what_is_not_stored_is_not_found(engine, client):
    engine.says("x")
    answer = create(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, previous_response_id=answer.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    kept = create(client)
    client.responses.delete(kept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(kept.id)


def test_the_background_is_asked_by_id(engine, client):
    engine.says("the operator")
    begun = create(client, background=True)
    assert (begun.status, begun.background, begun.output) == ("queued", True, [])
    done = engine.server.until("done", lambda: (r := client.responses.retrieve(begun.id)).status != "in_progress" and r)
    assert (done.status, done.output_text) == ("completed", "the operator")
    with pytest.raises(openai.BadRequestError, match="completed already"):
        client.responses.cancel(begun.id)


def test_the_background_is_cancelled_by_id(slow, slow_client):
    endless = create(slow_client, background=True, max_output_tokens=1900)
    cancelled = slow_client.responses.cancel(endless.id)
    assert cancelled.status == "cancelled"
    assert slow_client.responses.cancel(endless.id).status == "cancelled"
    slow.server.until("idle", lambda: slow.server.state()["running"] == 0)
    assert slow.server.state()["kv"]["pinned_tokens"] == 0


def test_a_cancelled_stream_ends_as_incomplete(slow_client):
    stream = create(slow_client, stream=True, max_output_tokens=1900)
    response_id = next(stream).response.id
    assert slow_client.responses.retrieve(response_id).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="not finished"):
        create(slow_client, previous_response_id=response_id)
    assert next(event for event in stream if event.type == "response.output_text.delta")
    cancelled = slow_client.responses.cancel(response_id)
    events = list(stream)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response == cancelled
    assert cancelled.status == "cancelled"
    assert events[-2].item.status == "incomplete"
    assert cancelled.output[0] == events[-2].item


def test_a_client_that_leaves_cancels(slow, slow_client):
    with create(slow_client, stream=True, max_output_tokens=1900) as stream:
        response_id = next(stream).response.id
    slow.server.until("cancelled", lambda: slow_client.responses.retrieve(response_id).status == "cancelled")
    slow.server.until("idle", lambda: slow.server.state()["running"] == 0)


def test_what_is_kept_is_bounded(tmp_path):
    with scripted(tmp_path, *ARGS, "--stored-response-bytes", "4000") as engine:
        engine.says("x")
        ids = [engine.server.ask("/v1/responses", {"model": "tiny", "input": "a"}).json["id"] for _ in range(8)]
        found = [engine.server.ask(f"/v1/responses/{one}").status for one in ids]
        assert found[:4] == [404] * 4
        assert found[-1] == 200


def test_a_server_that_keeps_nothing_says_so(tmp_path):
    with scripted(tmp_path, *ARGS, "--stored-response-bytes", "0") as engine:
        engine.says("x")
        answer = engine.server.ask("/v1/responses", {"model": "tiny", "input": "a"})
        assert (answer.status, answer.json["store"]) == (200, False)
        refused = engine.server.ask("/v1/responses", {"model": "tiny", "input": "a", "store": True})
        assert (refused.status, refused.error["param"]) == (400, "store")


def test_a_failed_engine_is_a_failed_response(tmp_path):
    with scripted(tmp_path, *ARGS, faults={"refuse": "no room"}) as engine:
        answer = engine.server.ask("/v1/responses", {"model": "tiny", "input": "a"})
        assert (answer.status, answer.error["message"]) == (500, "no room")
        begun = engine.server.ask("/v1/responses", {"model": "tiny", "input": "a", "background": True}).json
        path = f"/v1/responses/{begun['id']}"
        engine.server.until("failed", lambda: engine.server.ask(path).json["status"] == "failed")
        assert engine.server.ask(path).json["error"] == {"code": "server_error", "message": "no room"}


BAD_ITEM = [{"role": "user", "content": "a"}, {"type": "message", "role": "user", "content": [{"type": "input_image"}]}]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": BAD_ITEM}, "invalid_value", "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "invalid_value", "input"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "context_length_exceeded", "max_output_tokens"),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
        ({"conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"tool_choice": "some"}, "invalid_value", "tool_choice.mode"),
        ({"tool_choice": {"type": "mcp"}}, "invalid_value", "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "invalid_value", "text.format"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata"),
        ({"background": True, "store": False}, "unsupported_parameter", "background"),
        ({"background": True, "stream": True}, "unsupported_parameter", "background"),
        ({"previous_response_id": "resp_x"}, "previous_response_not_found", "previous_response_id"),
        ({"model": "other"}, "model_not_found", "model"),
    ],
)
def test_wrong_bodies_are_refused_by_name(engine, fields, code, param):
    answer = engine.server.ask("/v1/responses", {"model": "tiny", "input": "a", **fields})
    assert (answer.status // 100, answer.error["code"], answer.error["param"]) == (4, code, param), answer.body


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_parts_that_are_no_text_are_refused_as_such(engine, kind):
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": kind}]}
    for item in ({"role": "user", "content": [{"type": kind}]}, output):
        message = engine.server.ask("/v1/responses", {"input": [item]}).error["message"]
        assert f"holds a part of type {kind}; only text is served" in message


def test_a_refusal_is_a_text_of_the_model(engine, client):
    engine.says("x")
    refusal = {"type": "refusal", "refusal": "I must not."}
    create(client, [{"role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": [refusal]}])
    assert "I must not." in engine.prompt()


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?stream=true", "stream"),
        ("?starting_after=3", "starting_after"),
        ("?include[]=x", "include"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=none", "after"),
    ],
)
def test_wrong_queries_are_refused_by_name(engine, client, query, param):
    engine.says("x")
    answer = engine.server.ask(f"/v1/responses/{create(client).id}{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


def test_a_burst_in_the_background_meets_the_bound_of_the_queue(tmp_path):
    with scripted(
        tmp_path, *ARGS, "--max-waiting", "1", faults={"gate": str(tmp_path / "gate"), "max_sequences": 1}
    ) as engine:
        body = {"model": "tiny", "input": "a", "background": True}
        answers = [engine.server.ask("/v1/responses", body, headers=JSON).status for _ in range(5)]
        assert answers == [200, 200, 429, 429, 429]
        (tmp_path / "gate").touch()
        engine.server.until("idle", lambda: engine.server.ask("/load").json["server_load"] == 0)


def test_many_at_once_keep_their_own_events(engine, client):
    engine.says("the operator watches the services")
    found = []

    def one(place):
        events = list(create(client, f"{place}", stream=True))
        found.append((events[-1].response.output_text, [event.sequence_number for event in events]))

    threads = [threading.Thread(target=one, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert {text for text, _ in found} == {"the operator watches the services"}
    assert all(numbers == list(range(len(numbers))) for _, numbers in found)
