"""OpenAI's Agents SDK over responses and over chats: answers, streams, tools, typed output, handoffs, sessions."""

from typing import Literal

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from pydantic import BaseModel

QUIET = RunConfig(tracing_disabled=True)
KINDS = pytest.mark.parametrize("model", [OpenAIResponsesModel, OpenAIChatCompletionsModel], indirect=True)
CALL = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>'


class Machine(BaseModel):
    kind: Literal["pump", "fan"]
    on: bool


@pytest.fixture
async def model(request, url, scripted_url):
    """The kind of model, on either server: model(url)."""
    clients = {one: openai.AsyncOpenAI(base_url=f"{one}/v1", api_key="k", max_retries=0) for one in (url, scripted_url)}
    yield lambda where: request.param(model="tiny", openai_client=clients[where])
    for client in clients.values():
        await client.close()


@KINDS
async def test_a_typed_output(model, url):
    agent = Agent(
        name="a", instructions="Answer.", model=model(url), output_type=Machine,
        model_settings=ModelSettings(max_tokens=8000),
    )  # fmt: skip
    assert (await Runner.run(agent, "hello", run_config=QUIET)).final_output.kind in {"pump", "fan"}


@KINDS
@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_is_run_and_its_result_goes_back(model, stream, scripted_url, says):
    asked = []

    @function_tool
    def weather(place: str) -> str:
        """The weather of a place."""
        asked.append(place)
        says("It rains.")
        return "rain"

    says("<think>where?</think>I look." + CALL)
    agent = Agent(name="a", model=model(scripted_url), tools=[weather])
    if stream:
        result = Runner.run_streamed(agent, "hello", run_config=QUIET)
        events = [event.type async for event in result.stream_events()]
        assert "raw_response_event" in events
    else:
        result = await Runner.run(agent, "hello", run_config=QUIET)
    assert (asked, result.final_output) == (["Oslo"], "It rains.")


@KINDS
async def test_a_forced_tool_of_random_weights(model, url):
    @function_tool
    def machine(kind: Literal["pump", "fan"]) -> str:
        """A machine."""
        return kind

    agent = Agent(
        name="a", model=model(url), tools=[machine], tool_use_behavior="stop_on_first_tool",
        model_settings=ModelSettings(tool_choice="machine", max_tokens=8000, parallel_tool_calls=False),
    )  # fmt: skip
    assert (await Runner.run(agent, "hello", run_config=QUIET)).final_output in {"pump", "fan"}


@KINDS
async def test_a_handoff(model, scripted_url, says):
    other = Agent(name="other", model=model(scripted_url))
    first = Agent(name="first", model=model(scripted_url), handoffs=[other])
    says('<tool_call>{"name": "transfer_to_other", "arguments": {}}</tool_call>')
    result = Runner.run_streamed(first, "hello", run_config=QUIET)
    async for event in result.stream_events():
        if event.type == "agent_updated_stream_event" and event.new_agent is other:
            says("I am the other.")
    assert (result.last_agent.name, result.final_output) == ("other", "I am the other.")


@KINDS
async def test_a_session_is_sent_again(model, scripted_url, says):
    agent = Agent(name="a", model=model(scripted_url))
    session = SQLiteSession("s")
    for text in ("one", "two"):
        says(text)
        assert (await Runner.run(agent, "hello", session=session, run_config=QUIET)).final_output == text
    assert len(await session.get_items()) == 4
    session.close()
