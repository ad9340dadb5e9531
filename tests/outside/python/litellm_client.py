"""LiteLLM over OpenAI's, vLLM's, Anthropic's and Ollama's routes: chats, streams, tools, embeddings, mapped errors."""

import json

import litellm
import pytest
from pydantic import BaseModel, ConfigDict

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>'
ROUTES = ("openai", "hosted_vllm", "anthropic", "ollama_chat")
KINDS = pytest.mark.parametrize("kind", ROUTES)


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: bool


def route(kind: str, url: str) -> dict[str, object]:
    base = f"{url}/v1" if kind in {"openai", "hosted_vllm"} else url
    return {"model": f"{kind}/tiny", "api_base": base, "api_key": "k", "num_retries": 0}


@KINDS
def test_a_chat_and_its_stream_are_the_same(kind, url):
    asked = {**route(kind, url), "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    built = litellm.stream_chunk_builder(chunks)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.usage.completion_tokens == whole.usage.completion_tokens == 12
    if kind != "ollama_chat":  # LiteLLM itself calls every end of Ollama's a stop
        assert whole.choices[0].finish_reason == "length"


@KINDS
def test_a_chosen_tool(kind, scripted_url, says):
    says(CALL)
    asked = {**route(kind, scripted_url), "messages": HELLO, "max_tokens": 1000, "tools": [TOOL]}
    (call,) = litellm.completion(**asked).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"place": "Oslo"})
    built = litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True)))
    assert json.loads(built.choices[0].message.tool_calls[0].function.arguments) == {"place": "Oslo"}
    says("It rains.")
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"},
    ]
    again = litellm.completion(**(asked | {"messages": turns}))
    assert again.choices[0].message.content.strip() == "It rains."


@pytest.mark.parametrize("kind", ["openai", "hosted_vllm", "anthropic"])
def test_thoughts(kind, scripted_url, says):
    says("<think>hm</think>It rains.")
    message = litellm.completion(**route(kind, scripted_url), messages=HELLO, max_tokens=1000).choices[0].message
    assert (message.reasoning_content, message.content) == ("hm", "It rains.")


@pytest.mark.parametrize("kind", ["openai", "hosted_vllm", "ollama_chat"])
def test_a_schema(kind, url):
    answer = litellm.completion(**route(kind, url), messages=HELLO, max_tokens=8000, response_format=Place)
    assert Place.model_validate_json(answer.choices[0].message.content).city in {True, False}


def test_a_text_completion(url):
    asked = {"model": "text-completion-openai/tiny", "api_base": f"{url}/v1", "api_key": "k", "prompt": "hello"}
    assert litellm.text_completion(**asked, max_tokens=4, temperature=0).choices[0].finish_reason == "length"


async def test_responses(url):
    asked = {"model": "openai/tiny", "api_base": f"{url}/v1", "api_key": "k", "input": "hello"}
    asked |= {"max_output_tokens": 16, "temperature": 0}  # drawn at random, an answer may end before
    assert (await litellm.aresponses(**asked)).status == "incomplete"
    kinds = [event.type async for event in await litellm.aresponses(**asked, stream=True)]
    assert "response.output_text.delta" in kinds


async def test_anthropics_messages(url):
    answer = await litellm.anthropic.messages.acreate(
        **{**route("anthropic", url), "messages": HELLO, "max_tokens": 4, "temperature": 0, "num_retries": 0}
    )
    assert answer["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("kind", ["openai", "hosted_vllm", "ollama"])
def test_embeddings(kind, url):
    answer = litellm.embedding(**route(kind, url), input=["hello", "world"])
    assert [len(one["embedding"]) for one in answer.data] == [64, 64]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "openai/other"}, litellm.NotFoundError),
        ({"temperature": -1}, litellm.BadRequestError),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, litellm.ContextWindowExceededError),
    ],
)
def test_errors_are_mapped(change, error, url):
    with pytest.raises(error):
        litellm.completion(**{**route("openai", url), "messages": HELLO, "max_tokens": 3, **change})


def test_a_long_prompt_of_anthropics_route_is_mapped(url):
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**route("anthropic", url), messages=[{"role": "user", "content": "x" * 200_000}])
