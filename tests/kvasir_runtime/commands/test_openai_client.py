"""Streams of a server as a chat reads them, also broken ones."""

import pytest

from kvasir_runtime.commands.openai_client import ServerError, base_url, pieces, refusal
from kvasir_runtime.frontend.parsing.parts import Content, Reasoning

TEXT = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n'
END = b"data: [DONE]\n"


def test_texts_are_taken_from_the_stream():
    lines = [b": waiting\n", b"\n", TEXT % b"a", b'data: {"choices":[{"delta":{}}]}\n', b'data: {"choices":[]}\n']
    assert list(pieces(iter([*lines, TEXT % b"b", END, TEXT % b"never"]))) == [Content("a"), Content("b")]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thoughts_are_told_apart(name):
    lines = [b'data: {"choices":[{"delta":{"%s":"hm"}}]}\n' % name.encode(), TEXT % b"a", END]
    assert list(pieces(iter(lines))) == [Reasoning("hm"), Content("a")]


def test_thoughts_under_both_names_are_one():
    lines = [b'data: {"choices":[{"delta":{"reasoning":"hm","reasoning_content":"hm"}}]}\n', END]
    assert list(pieces(iter(lines))) == [Reasoning("hm")]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([TEXT % b"a"], "without"),
        ([b'data: {"error": {"message": "the engine\\ndied"}}\n'], "the engine died"),
        ([b"data: {\n"], "is not an answer"),
        ([b'data: {"choices": 5}\n'], "is not an answer"),
        ([b'data: {"choices": [{}]}\n'], "is not an answer"),
    ],
)
def test_what_is_no_answer_is_an_error(lines, words):
    with pytest.raises(ServerError, match=words):
        list(pieces(iter(lines)))


@pytest.mark.parametrize(
    ("url", "want"),
    [("http://h:1", "http://h:1/v1"), ("http://h/v1/", "http://h/v1"), ("https://h/a/", "https://h/a/v1")],
)
def test_v1_may_be_left_out(url, want):
    assert base_url(url) == want


def test_only_http_is_opened():
    with pytest.raises(ServerError, match="http"):
        base_url("file:///etc/passwd")


@pytest.mark.parametrize(
    ("document", "want"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "plain"}', "plain"),
        (b"<html>\n<b>502</b>", "<html> <b>502</b>"),
        (b"", "no reason given"),
    ],
)
def test_refusals_are_one_line(document, want):
    assert refusal(document) == want
