"""instructor over OpenAI's and Anthropic's clients: every mode that a server of this kind can serve."""

from enum import Enum
from typing import Literal

import anthropic
import instructor
import openai
import pytest
from instructor import Mode
from pydantic import BaseModel, ConfigDict, Field

HELLO = [{"role": "user", "content": "hello"}]


class Level(Enum):
    LOW = "low"
    HIGH = "high"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    on: bool
    level: Literal["low", "high"]


class Machine(BaseModel):
    """A machine with parts."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["pump", "fan"]
    parts: list[Part] = Field(min_length=1, max_length=2)
    note: Literal["fine"] | None


def checked(machine: Machine) -> None:
    assert machine.kind in {"pump", "fan"}
    assert 1 <= len(machine.parts) <= 2


OPENAI_MODES = (Mode.TOOLS, Mode.JSON_SCHEMA)


@pytest.fixture
def chats(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("mode", OPENAI_MODES)
def test_a_model_of_a_chat(chats, mode):
    client = instructor.from_openai(chats, mode=mode)
    checked(client.create(model="tiny", messages=HELLO, response_model=Machine, max_tokens=8000, max_retries=0))


@pytest.mark.parametrize("mode", OPENAI_MODES)
def test_a_partial_model_grows(chats, mode):
    client = instructor.from_openai(chats, mode=mode)
    grown = list(client.create_partial(model="tiny", messages=HELLO, response_model=Machine, max_tokens=8000))
    checked(grown[-1])
    assert len(grown) > 1


def test_an_iterable_of_models_and_an_enumeration(chats):
    client = instructor.from_openai(chats, mode=Mode.JSON_SCHEMA)
    found = client.create(model="tiny", messages=HELLO, response_model=list[Level], max_tokens=8000, seed=1)
    assert all(isinstance(one, Level) for one in found)


@pytest.mark.parametrize("mode", [Mode.JSON, Mode.MD_JSON])
def test_modes_without_a_schema_read_the_answers_text(scripted_url, says, mode):
    says('```json\n{"on": true, "level": "low"}\n```' if mode is Mode.MD_JSON else '{"on": true, "level": "low"}')
    with openai.OpenAI(base_url=f"{scripted_url}/v1", api_key="k", max_retries=0) as made:
        client = instructor.from_openai(made, mode=mode)
        found = client.create(model="tiny", messages=HELLO, response_model=Part)
        assert (found.on, found.level) == (True, "low")


def test_a_wrong_answer_is_sent_back_and_tried_again(scripted_url, says):
    class Even(BaseModel):
        number: int = Field(multiple_of=2)

    says('{"number": 3}')
    seen = []
    with openai.OpenAI(base_url=f"{scripted_url}/v1", api_key="k", max_retries=0) as made:
        client = instructor.from_openai(made, mode=Mode.JSON)

        def wrong(*_: object) -> None:
            seen.append(1)
            says('{"number": 4}')

        client.on("parse:error", wrong)
        assert client.create(model="tiny", messages=HELLO, response_model=Even, max_retries=2).number == 4
    assert seen == [1]


def test_a_model_of_a_response(chats):
    client = instructor.from_openai(chats, mode=Mode.RESPONSES_TOOLS)
    checked(client.create(model="tiny", messages=HELLO, response_model=Machine, max_output_tokens=8000))


def test_a_model_of_a_message(url):
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as made:
        client = instructor.from_anthropic(made, mode=Mode.TOOLS)
        checked(client.create(model="tiny", messages=HELLO, response_model=Machine, max_tokens=8000, max_retries=0))
