"""What an answer consists of, in order: content, reasoning and calls; the form between parsers and APIs.

The parsers return it, and the serializer of each API writes it into its own documents. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins. index: from 0 in its answer. name: one of the offered functions. Always before its Arguments."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments: all pieces together are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete and its arguments are valid JSON; more may follow it."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """The call went wrong or was cut after it had begun, so it is none. raw: all that the model wrote of it so far.

    A stream cannot take back what it sent; an answer that is sent whole has raw as content in its place.
    """

    index: int
    raw: str


@dataclass(frozen=True, slots=True)
class CallCut:
    """The answer was cut within a call that had to be made: its arguments are the beginning of a JSON object."""

    index: int


Part = Content | Reasoning | CallBegin | CallArguments | CallEnd | CallBroken | CallCut


@dataclass(slots=True)
class ToolCall:
    """A call. arguments: the text of a JSON object, or its beginning where the call was cut."""

    call_id: str
    name: str
    arguments: str
    cut: bool = False

    @property
    def input(self) -> dict[str, Any]:
        """The arguments as an object; of a call that was cut, as far as they go."""
        found: dict[str, Any] = from_json(self.arguments or "{}", allow_partial="trailing-strings")
        return found


@dataclass(slots=True)
class JoinedAnswer:
    """A whole answer, as join() makes it."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)


def join(parts: Iterable[Part]) -> JoinedAnswer:
    """The whole answer. A call without its end is none; where it broke, what was written of it is content."""
    texts: list[str] = []
    reasoning: list[str] = []
    begun: dict[int, ToolCall] = {}
    done: list[int] = []
    for part in parts:
        match part:
            case Content(text):
                texts.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallBegin(index, call_id, name):
                begun[index] = ToolCall(call_id, name, "")
            case CallArguments(index, text):
                begun[index].arguments += text
            case CallEnd(index):
                done.append(index)
            case CallCut(index):
                begun[index].cut = True
                done.append(index)
            case CallBroken(_, raw):
                texts.append(raw)
    return JoinedAnswer("".join(texts), "".join(reasoning), [begun[index] for index in done])


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same with fewer parts: neighbours that continue one another become one."""
    made: list[Part] = []
    for part in parts:
        last = made[-1] if made else None
        match last, part:
            case Content(before), Content(text):
                made[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                made[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                made[-1] = CallArguments(index, before + text)
            case _:
                made.append(part)
    return made
