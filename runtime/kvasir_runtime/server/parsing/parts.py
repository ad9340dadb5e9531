"""What an answer consists of, in order: content, reasoning and calls; the form between parsers and surfaces.

The parsers give it, every surface (chat, responses, messages, Ollama) frames it in its own documents. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thought, without its tags."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call begins. index: from 0 in its answer. name: one of the offered functions. Always before its Arguments."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of a call's arguments: all pieces together are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The call is complete and its arguments are valid JSON; more may follow it."""

    index: int


@dataclass(frozen=True, slots=True)
class Broken:
    """The call went wrong or was cut after it had begun, so it is none. raw: all that the model wrote of it so far.

    A stream cannot take back what it told; an answer that is sent whole has raw as content in its place.
    """

    index: int
    raw: str


Part = Content | Reasoning | Call | Arguments | Done | Broken


@dataclass(slots=True)
class Called:
    """A complete call. arguments: the text of a JSON object."""

    call_id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Joined:
    """A whole answer, as join() makes it."""

    content: str = ""
    reasoning: str = ""
    calls: list[Called] = field(default_factory=list)


def join(parts: Iterable[Part]) -> Joined:
    """The whole answer. A call without its Done is none; where it broke, what was written of it is content."""
    texts: list[str] = []
    thoughts: list[str] = []
    begun: dict[int, Called] = {}
    done: list[int] = []
    for part in parts:
        match part:
            case Content(text):
                texts.append(text)
            case Reasoning(text):
                thoughts.append(text)
            case Call(index, call_id, name):
                begun[index] = Called(call_id, name, "")
            case Arguments(index, text):
                begun[index].arguments += text
            case Done(index):
                done.append(index)
            case Broken(_, raw):
                texts.append(raw)
    return Joined("".join(texts), "".join(thoughts), [begun[index] for index in done])


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
            case Arguments(index, before), Arguments(same, text) if index == same:
                made[-1] = Arguments(index, before + text)
            case _:
                made.append(part)
    return made
