"""Ollama's Python client: models, generate, chats, tools, formats, embeddings, errors."""

import ollama
import pytest
from pydantic import BaseModel, ConfigDict

HELLO = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "num_predict": 8}


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: bool


@pytest.fixture
def client(url):
    made = ollama.Client(url)
    yield made
    made._client.close()


@pytest.fixture
def scripted(scripted_url):
    made = ollama.Client(scripted_url)
    yield made
    made._client.close()


def test_models(client):
    (model,) = client.list().models
    assert model.model == "tiny:latest"
    assert client.show("tiny").capabilities
    assert client.ps().models[0].model == "tiny:latest"


def test_a_text_and_its_stream_are_the_same(client):
    whole = client.generate("tiny", "hello", options=GREEDY)
    parts = list(client.generate("tiny", "hello", options=GREEDY, stream=True))
    assert "".join(part.response for part in parts) == whole.response
    assert parts[-1].done_reason == whole.done_reason == "length"
    assert parts[-1].eval_count == whole.eval_count == 8


def test_a_chat_and_its_stream_are_the_same(client):
    whole = client.chat("tiny:latest", HELLO, options=GREEDY)
    parts = list(client.chat("tiny", HELLO, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content


def test_a_format(client):
    answer = client.chat("tiny", HELLO, format=Place.model_json_schema(), options={"num_predict": 300})
    assert Place.model_validate_json(answer.message.content).city in {True, False}


def test_thoughts_and_a_tool_that_is_a_function(scripted, says):
    def weather(place: str) -> str:
        """The weather of a place.

        Args:
            place: where
        """
        return place

    says('<think>where?</think><tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>')
    for stream in (False, True):
        found = scripted.chat("tiny", HELLO, tools=[weather], think=True, stream=stream)
        parts = list(found) if stream else [found]
        (call,) = [call for part in parts for call in part.message.tool_calls or ()]
        assert call.function.name == "weather"
        assert weather(**call.function.arguments) == "Oslo"
        assert "".join(part.message.thinking or "" for part in parts) == "where?"
    turns = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "x"},
    ]
    says("It rains.")
    assert scripted.chat("tiny", turns, tools=[weather]).message.content == "It rains."


def test_embeddings(client):
    several = client.embed("tiny", ["hello", "world"])
    assert len(several.embeddings) == 2
    assert client.embed("tiny", "hello").embeddings[0] == pytest.approx(several.embeddings[0], abs=1e-5)


@pytest.mark.parametrize(
    ("ask", "status", "text"),
    [
        (lambda client: client.chat("other", HELLO), 404, "not found|does not exist"),
        (lambda client: client.chat("tiny", [{**HELLO[0], "images": [b"GIF89a"]}]), 400, "only text is served"),
        (lambda client: client.generate("tiny", "a", images=[b"GIF89a"]), 400, "images"),
        (lambda client: client.create("new", from_="tiny"), 404, "There is no"),
        (lambda client: client.delete("tiny"), 404, "There is no"),
    ],
)
def test_errors(client, ask, status, text):
    with pytest.raises(ollama.ResponseError, match=text) as caught:
        ask(client)
    assert caught.value.status_code == status


async def test_asynchronous_streams_that_are_left(url, idle):
    client = ollama.AsyncClient(url)
    async for part in await client.chat("tiny", HELLO, stream=True, options=GREEDY | {"num_predict": 20_000}):
        assert part.message.role == "assistant"
        break
    await client._client.aclose()
    idle()
