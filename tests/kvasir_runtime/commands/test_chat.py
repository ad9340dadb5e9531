"""What a person sees of an answer: thoughts dimmed and apart from it; and what a program reads: the answer alone."""

import io

import click

from kvasir_runtime.commands.chat import Screen, answer, converse
from kvasir_runtime.commands.conversation import Conversation
from kvasir_runtime.frontend.parsing.parts import Content, Reasoning

THOUGHT = [Reasoning("\nAre two"), Reasoning(" enough?\n"), Content("\n\nYes"), Content(", two.")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def talk(pieces, source, sink):
    heard = []

    def stream(messages, _params):
        heard.append([dict(message) for message in messages])
        yield from pieces[len(heard) - 1]

    conversation = Conversation()
    assert converse(conversation, stream, {}, Screen(source, sink))
    return conversation, heard


def test_a_program_reads_the_answer_alone():
    sink = io.StringIO()
    conversation, heard = talk([THOUGHT, [Content("no")]], io.StringIO("two?\nthree?\n"), sink)
    assert sink.getvalue() == "\n\nYes, two.\nno\n"
    assert [message["content"] for message in heard[1]] == ["two?", "\n\nYes, two.", "three?"]
    assert conversation.messages[-1]["content"] == "no"


def shown(pieces):
    """What stands on a terminal after one answer."""
    sink = Terminal()
    conversation = Conversation()
    conversation.read("two?")
    answer(conversation, lambda _messages, _params: iter(pieces), {}, Screen(Terminal(), sink))
    return sink.getvalue(), conversation


def test_a_person_sees_thoughts_dimmed_before_the_answer():
    text, conversation = shown(THOUGHT)
    for thought in ("Are two", " enough?\n"):
        assert click.style(thought, dim=True) in text
    assert click.unstyle(text).startswith("bot  Are two enough?\n\n\nYes, two.\n")
    assert conversation.messages[-1] == {"role": "assistant", "content": "\n\nYes, two."}


def test_thoughts_without_an_answer_are_none():
    text, conversation = shown(THOUGHT[:2])
    assert "only reasoning" in text
    assert conversation.messages == []
