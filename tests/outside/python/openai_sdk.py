"""OpenAI's Python client: chats, streams, tools, structured outputs, responses, embeddings, errors, aborts, retries."""

import asyncio
import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

HELLO = [{"role": "user", "content": "hello"}]
PIXEL = "data:image/png;base64,iVBORw0KGgo="


class Answer(BaseModel):
    kind: Literal["yes", "no"]
    count: Literal[1, 2, 3]


class Weather(BaseModel):
    """The weather of a place."""

    place: Literal["Oslo", "Bergen"]


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, _strict_response_validation=True) as made:
        yield made


@pytest.fixture
def lenient(url):
    """Packed embeddings and logprobs of echoed prompts are outside of the client's own types."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as made:
        yield made


@pytest.fixture
def scripted(scripted_url):
    with openai.OpenAI(base_url=f"{scripted_url}/v1", api_key="k", max_retries=0) as made:
        yield made


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_and_its_stream_are_the_same(client):
    asked = {"model": "tiny", "messages": HELLO, "max_completion_tokens": 12, "temperature": 0, "seed": 1}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.model_dump(exclude={"prompt_tokens_details"}) == whole.usage.model_dump(
        exclude={"prompt_tokens_details"}
    )
    assert whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "length"


def test_logprobs_of_a_chat(client):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert [len(one.top_logprobs) for one in whole] == [3] * 4
    assert all(one.logprob == one.top_logprobs[0].logprob for one in whole)
    with client.chat.completions.stream(**asked) as stream:
        told = [one for event in stream if event.type == "logprobs.content.delta" for one in event.content]
    assert [one.token for one in told] == [one.token for one in whole]


def test_parse_of_a_chat(client):
    asked = {"model": "tiny", "messages": HELLO, "response_format": Answer, "max_tokens": 300}
    assert client.chat.completions.parse(**asked).choices[0].message.parsed.count in {1, 2, 3}
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed.kind in {"yes", "no"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "Weather"}}])
def test_parse_of_a_forced_tool(client, choice):
    asked = {
        "model": "tiny",
        "messages": HELLO,
        "tools": [openai.pydantic_function_tool(Weather)],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 300,
    }
    (call,) = client.chat.completions.parse(**asked).choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(**asked) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert [json.loads(event.arguments) for event in done] == [json.loads(streamed.function.arguments)]


def test_parse_of_a_cut_answer_says_so(client):
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Answer, max_tokens=3)


def test_a_chosen_tool_with_thoughts(scripted, says):
    says('<think>where?</think>I look.<tool_call>{"name": "Weather", "arguments": {"place": "Oslo"}}</tool_call>')
    asked = {"model": "tiny", "messages": HELLO, "tools": [openai.pydantic_function_tool(Weather)]}
    choice = scripted.chat.completions.parse(**asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.reasoning_content) == ("I look.", "where?")
    assert choice.message.tool_calls[0].function.parsed_arguments == Weather(place="Oslo")
    with scripted.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        assert stream.get_final_completion().choices[0].message.tool_calls[0].function.name == "Weather"
    assert "tool_calls.function.arguments.delta" in kinds


def test_a_tools_result_goes_back(client):
    call = {"id": "c1", "type": "function", "function": {"name": "Weather", "arguments": '{"place": "Oslo"}'}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]})
    assert client.chat.completions.create(model="tiny", messages=messages, max_tokens=3).choices


def test_completions(lenient):
    asked = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 5, "n": 2, "logprobs": 2, "echo": True, "seed": 3}
    answer = lenient.completions.create(**asked)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    streamed = ["", "", "", ""]
    for chunk in lenient.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in answer.choices]


def test_responses_and_what_follows_them(client):
    greedy = {"model": "tiny", "max_output_tokens": 16, "temperature": 0}
    first = client.responses.create(**greedy, input="hello", instructions="Be brief.")
    assert first.status == "incomplete"
    assert first.incomplete_details.reason == "max_output_tokens"
    assert client.responses.retrieve(first.id).output_text == first.output_text
    events = list(client.responses.create(**greedy, input="more", previous_response_id=first.id, stream=True))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert client.responses.input_items.list(events[-1].response.id).data
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_parse_of_a_response(client):
    answer = client.responses.parse(model="tiny", input="hello", text_format=Answer, max_output_tokens=300)
    assert answer.output_parsed.kind in {"yes", "no"}
    with client.responses.stream(model="tiny", input="hello", text_format=Answer, max_output_tokens=300) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed.count in {1, 2, 3}


def test_a_forced_tool_of_a_response(client):
    asked = {
        "model": "tiny",
        "input": "hello",
        "tools": [openai.pydantic_function_tool(Weather)["function"] | {"type": "function"}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_output_tokens": 300,
    }
    (call,) = client.responses.parse(**asked).output
    assert json.loads(call.arguments)["place"] in {"Oslo", "Bergen"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    again = client.responses.create(
        model="tiny", input=[{"role": "user", "content": "hello"}, call, output], max_output_tokens=16, temperature=0
    )
    assert again.output


def test_embeddings(lenient):
    asked = {"model": "tiny", "input": ["hello", "world"]}
    packed, plain = (lenient.embeddings.create(**asked, **extra) for extra in ({}, {"encoding_format": "float"}))
    assert len(packed.data) == 2
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)
    assert packed.usage.prompt_tokens == plain.usage.prompt_tokens


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, openai.BadRequestError, "messages"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]},
            openai.BadRequestError,
            "messages[0].content",
        ),
    ],
)
def test_errors(client, change, error, param):
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 3} | change)
    assert caught.value.param == param
    assert caught.value.body["message"]


def test_an_image_in_a_response_is_refused(client):
    part = {"type": "input_image", "image_url": PIXEL}
    with pytest.raises(openai.BadRequestError, match="image"):
        client.responses.create(model="tiny", input=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.images.generate(prompt="a", model="tiny"),
        lambda client: client.audio.speech.create(input="a", model="tiny", voice="alloy"),
        lambda client: client.files.list(),
        lambda client: client.moderations.create(input="a"),
    ],
)
def test_what_is_not_here_is_not_found(client, ask):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client)
    assert caught.value.body["message"]


def test_a_stream_that_is_left_ends_on_the_server(client, idle):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 20_000, "extra_body": {"ignore_eos": True}}
    with client.chat.completions.create(**asked, stream=True) as stream:
        next(iter(stream))
    idle()


async def test_a_request_that_is_cancelled_ends_on_the_server(url, idle):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        asked = {"model": "tiny", "messages": HELLO, "max_tokens": 20_000, "extra_body": {"ignore_eos": True}}
        task = asyncio.create_task(client.chat.completions.create(**asked))
        streams = [await client.chat.completions.create(**asked, stream=True) for _ in range(3)]
        for stream in streams:
            assert await anext(aiter(stream))
        task.cancel()
        for stream in streams:
            await stream.close()
        with pytest.raises(asyncio.CancelledError):
            await task
    idle()


def test_a_timeout_of_the_client_ends_the_request(client, idle):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=20_000, extra_body={"ignore_eos": True}
        )
    idle()


def test_raw_responses_have_the_ids_of_requests(client):
    raw = client.chat.completions.with_raw_response.create(model="tiny", messages=HELLO, max_tokens=2)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices
