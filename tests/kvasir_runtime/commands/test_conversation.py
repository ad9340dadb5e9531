"""What lines of a chat mean, and what the model is sent after them."""

import pytest

from kvasir_runtime.commands.conversation import Conversation, LineAction


def said(*lines, system=""):
    conversation = Conversation(system=system)
    actions = [conversation.read(line) for line in lines]
    return conversation, actions


def test_messages_and_answers_are_kept_in_turn():
    chat = Conversation(system="short")
    for number in range(2):
        assert chat.read(f"q{number}").kind == "answer"
        chat.answered(f"a{number}")
    assert [(m["role"], m["content"]) for m in chat.prompt()] == [
        ("system", "short"), ("user", "q0"), ("assistant", "a0"), ("user", "q1"), ("assistant", "a1"),
    ]  # fmt: skip


def test_a_question_without_an_answer_is_taken_back():
    chat, _ = said("q")
    chat.answered("")
    assert chat.prompt() == []


def test_lines_go_on_after_a_backslash():
    chat, actions = said("one\\", "/two", "")
    assert [action.kind for action in actions] == ["print", "answer", "print"]
    assert chat.messages == [{"role": "user", "content": "one\n/two"}]
    assert not chat.continues


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("", LineAction("print")),
        ("/exit", LineAction("exit")),
        ("/quit", LineAction("exit")),
        ("/reset", LineAction("print", "messages removed")),
        ("/retry", LineAction("print", "no message yet")),
        ("/nothing else", LineAction("print", "there is no /nothing; /help lists what there is")),
    ],
)
def test_commands(line, want):
    assert said(line)[1] == [want]


def test_help_names_every_command():
    text = said("/help")[1][0].text
    assert all(name in text for name in ("/system", "/reset", "/retry", "/help", "/exit"))


def test_system_begins_again_and_retry_repeats_the_question():
    chat, _ = said("q")
    chat.answered("a")
    assert chat.read("/retry").kind == "answer"
    assert chat.messages == [{"role": "user", "content": "q"}]
    assert chat.read("/system be brief").text == "system message set"
    assert chat.prompt() == [{"role": "system", "content": "be brief"}]
    chat.read("/system")
    assert chat.prompt() == []
