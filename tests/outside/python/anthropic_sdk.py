"""Anthropic's Python client: messages, streams, tools and their runner, parsed outputs, counting, errors, aborts."""

import anthropic
import pytest
from anthropic import beta_tool
from pydantic import BaseModel

HELLO = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0}
WEATHER = {
    "name": "weather",
    "description": "The weather of a place.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"enum": ["Oslo", "Bergen"]}},
        "required": ["place"],
        "additionalProperties": False,
    },
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


class Place(BaseModel):
    city: bool


@pytest.fixture
def client(url):
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, _strict_response_validation=True) as made:
        yield made


@pytest.fixture
def scripted(scripted_url):
    with anthropic.Anthropic(base_url=scripted_url, api_key="k", max_retries=0) as made:
        yield made


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_message_and_its_stream_are_the_same(client):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "extra_body": GREEDY}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert whole.stop_reason == final.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == final.usage.output_tokens == 12


def test_stop_sequences(scripted, says):
    says("one two three")
    answer = scripted.messages.create(model="tiny", messages=HELLO, max_tokens=12, stop_sequences=["two"])
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one ", "stop_sequence", "two")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_tool(client, choice):
    choice |= {"disable_parallel_tool_use": True}
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 300, "tools": [WEATHER], "tool_choice": choice}
    answer = client.messages.create(**asked)
    assert answer.stop_reason == "tool_use"
    (block,) = answer.content
    assert block.input["place"] in {"Oslo", "Bergen"}
    with client.messages.stream(**asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.input["place"] in {"Oslo", "Bergen"}
    result = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "rain"}]}
    turns = [*HELLO, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(
        model="tiny", messages=turns, max_tokens=3, tools=[WEATHER], extra_body=GREEDY
    ).content


def test_thoughts_and_a_chosen_tool(scripted, says):
    says('<think>where?</think>I look.<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>')
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 1000, "tools": [WEATHER]}
    with scripted.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == {"place": "Oslo"}
    assert {"thinking", "text", "input_json"} <= set(kinds)
    assert scripted.messages.create(**asked).content[0].thinking == "where?"


def test_the_tool_runner_ends_with_an_answer(scripted, says):
    @beta_tool
    def weather(place: str) -> str:
        """The weather of a place."""
        says("It rains.")
        return f"rain in {place}"

    says('<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>')
    runner = scripted.beta.messages.tool_runner(model="tiny", max_tokens=1000, tools=[weather], messages=HELLO)
    messages = list(runner)
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    assert messages[-1].content[0].text == "It rains."


def test_a_parsed_output(client):
    answer = client.messages.parse(model="tiny", messages=HELLO, max_tokens=300, output_format=Place)
    assert answer.parsed_output.city in {True, False}


def test_tokens_are_counted_as_they_are_sent(client):
    asked = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "system": "Be brief."}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model": "other"}, anthropic.NotFoundError, "does not exist"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"messages": []}, anthropic.BadRequestError, "messages"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, anthropic.BadRequestError, "only text is served"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, anthropic.BadRequestError, "prompt is too long"),
    ],
)
def test_errors(client, change, error, says):
    with pytest.raises(error, match=says):
        client.messages.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 3} | change)


def test_a_screenshot_of_a_tool_is_refused(client):
    result = {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}
    turns = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    with pytest.raises(anthropic.BadRequestError, match="only text is served"):
        client.messages.create(model="tiny", messages=turns, max_tokens=3, tools=[WEATHER])


def test_batches_are_not_found(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()


def test_a_stream_that_is_left_ends_on_the_server(client, idle):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 20_000, "extra_body": GREEDY}
    with client.messages.stream(**asked) as stream:
        next(iter(stream.text_stream))
    idle()
