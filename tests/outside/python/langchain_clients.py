"""LangChain over all three APIs: chats, streams, tools, structured output, embeddings, counts of tokens."""

from typing import Literal

import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

HELLO = [HumanMessage("hello")]
CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>'


class Machine(BaseModel):
    """A machine."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["pump", "fan"]
    on: bool


@tool
def weather(place: str) -> str:
    """The weather of a place."""
    return f"rain in {place}"


def chat(kind: str, url: str, **options):
    match kind:
        case "openai":
            return ChatOpenAI(
                model="tiny", base_url=f"{url}/v1", api_key="k", max_retries=0, stream_usage=True, **options
            )
        case "responses":
            return ChatOpenAI(
                model="tiny", base_url=f"{url}/v1", api_key="k", max_retries=0, use_responses_api=True, **options
            )
        case "anthropic":
            return ChatAnthropic(model="tiny", base_url=url, api_key="k", max_retries=0, **options)
        case _:
            options = {"num_predict" if name == "max_tokens" else name: value for name, value in options.items()}
            return ChatOllama(model="tiny", base_url=url, **options)


KINDS = pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "ollama"])


@KINDS
def test_a_chat_and_its_stream_are_the_same(kind, url):
    model = chat(kind, url, max_tokens=16, temperature=0)
    whole = model.invoke(HELLO)
    streamed = None
    for chunk in model.stream(HELLO):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.text == whole.text
    assert whole.usage_metadata["output_tokens"] == streamed.usage_metadata["output_tokens"] == 16


@KINDS
@pytest.mark.asyncio(loop_scope="module")  # LangChain keeps connections from one test to the next
async def test_many_chats_at_once(kind, url):
    answers = await chat(kind, url, max_tokens=16).abatch([HELLO] * 8)
    assert all(answer.usage_metadata["output_tokens"] <= 16 for answer in answers)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("openai", "json_schema"),
        ("openai", "function_calling"),
        ("responses", "json_schema"),
        ("responses", "function_calling"),
        ("anthropic", "json_schema"),
        ("anthropic", "function_calling"),
        ("ollama", "json_schema"),
    ],
)
def test_structured_output(kind, method, url):
    model = chat(kind, url, max_tokens=8000).with_structured_output(Machine, method=method)
    assert model.invoke(HELLO).kind in {"pump", "fan"}


@KINDS
def test_a_tool_is_chosen_and_its_result_goes_back(kind, scripted_url, says):
    model = chat(kind, scripted_url, max_tokens=1000).bind_tools([weather])
    says("I look." + CALL)
    whole = model.invoke(HELLO)
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"place": "Oslo"})
    streamed = None
    for chunk in model.stream(HELLO):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed.tool_calls[0]["args"] == {"place": "Oslo"}
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    says("It rains.")
    assert model.invoke([*HELLO, whole, result]).text == "It rains."


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
def test_a_tool_may_be_forced(kind, url):
    model = chat(kind, url, max_tokens=8000).bind_tools([Machine], tool_choice="Machine")
    assert model.invoke(HELLO).tool_calls[0]["args"]["kind"] in {"pump", "fan"}


def test_a_completion(url):
    model = OpenAI(model="tiny", base_url=f"{url}/v1", api_key="k", max_tokens=8, temperature=0)
    assert "".join(model.stream("hello")) == model.invoke("hello")
    assert len(model.generate(["a", "b"]).generations) == 2


def test_embeddings(url):
    plain = OpenAIEmbeddings(model="tiny", base_url=f"{url}/v1", api_key="k", check_embedding_ctx_length=False)
    one = plain.embed_documents(["hello", "world"])
    other = OllamaEmbeddings(model="tiny", base_url=url).embed_documents(["hello", "world"])
    for left, right in zip(one, other, strict=True):
        assert left == pytest.approx(right, abs=1e-5)


def test_a_prompt_that_is_too_long_is_known_as_such(url):
    with pytest.raises(openai.BadRequestError) as caught:
        chat("openai", url, max_tokens=5).invoke("x" * 200_000)
    assert type(caught.value).__name__ == "OpenAIContextOverflowError"
