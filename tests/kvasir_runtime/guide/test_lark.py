"""Structural tags as grammars: what their texts may be, and which documents are refused with what name."""

import json

import pytest

from fakes.grammars import CALL, NUMBER, of_tags, tag
from kvasir_runtime.guide import validate
from kvasir_runtime.wire import Grammar

CALLS = of_tags(
    {
        "type": "triggered_tags",
        "triggers": ["<f=", "<|im_start|>"],
        "tags": [
            tag("<f=one>", CALL, "</f>"),
            tag("<f=two>", NUMBER, "</f>"),
            tag("<|im_start|>three", NUMBER, "<|im_end|>"),
        ],
    }
)
OLDER = Grammar(
    kind="structural_tag",
    text=json.dumps(
        {
            "triggers": ["<f="],
            "structures": [
                {"begin": "<f=one>", "schema": CALL["json_schema"], "end": "</f>"},
                {"begin": "<f=two>", "schema": {"type": "integer", "maximum": 999, "minimum": 0}, "end": "</f>"},
            ],
        }
    ),
)
SPECIALS = ("<|im_start|>", "<|im_end|>")


def accepts(words, grammar, text):
    """Whether a text is one of the grammar, special tokens written by their names."""
    found = validate.verdict(grammar, words)
    assert found.error == ""
    matcher = words.matcher(found.grammar)
    tokens = words.tokenizer.tokenize_str(text, parse_special=True)
    assert all(words.specials[name] in tokens for name in SPECIALS if name in text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("", True),
        ("the plan, <b> and <f", True),
        ('so <f=one>{"x": 5}</f> it is', True),
        ('so <f=one>{"x": 5}</f><f=two>12</f>', True),
        ("so <f=two>12</f> and <|im_start|>three7<|im_end|> there", True),
        ('so <f=one>{"x": "5"}</f>', False),
        ("<f=one>12</f>", False),
        ("<f=two>1234</f>", False),
        ("<f=four>", False),
        ("<f=two>12", False),
        ("so <|im_start|>two", False),
        ("so <|im_end|>", False),
    ],
)
def test_free_text_with_calls(words, text, right):
    assert accepts(words, CALLS, text) == right


@pytest.mark.parametrize(
    ("text", "right"), [("a <f=one>{}</f>", False), ('a <f=one>{"x":1}</f>', True), ("<f=two>5</f> b", True)]
)
def test_the_older_shape(words, text, right):
    assert accepts(words, OLDER, text) == right


FIRST = {"type": "triggered_tags", "triggers": ["<f="], "tags": [tag("<f=n>", NUMBER, "</f>")]}


@pytest.mark.parametrize(
    ("switches", "text", "right"),
    [
        ({}, "no call", True),
        ({"at_least_one": True}, "no call", False),
        ({"at_least_one": True}, "<f=n>1</f> more", True),
        ({"at_least_one": True}, "more <f=n>1</f>", False),
        ({"stop_after_first": True}, "a <f=n>1</f>", True),
        ({"stop_after_first": True}, "a <f=n>1</f> b", False),
        ({"stop_after_first": True}, "none", True),
        ({"stop_after_first": True, "at_least_one": True}, "<f=n>1</f>", True),
    ],
)
def test_how_many_calls(words, switches, text, right):
    assert accepts(words, of_tags({**FIRST, **switches}), text) == right


LIST = {"type": "tags_with_separator", "separator": ";", "tags": [tag("<", NUMBER, ">"), tag("[", NUMBER, "]")]}


@pytest.mark.parametrize(
    ("switches", "text", "right"),
    [
        ({}, "", True),
        ({}, "<1>;[2];<3>", True),
        ({}, "<1><2>", False),
        ({"at_least_one": True}, "", False),
        ({"stop_after_first": True}, "<1>;<2>", False),
        ({"separator": ""}, "<1>[2]", True),
    ],
)
def test_lists_of_tags(words, switches, text, right):
    assert accepts(words, of_tags({**LIST, **switches}), text) == right


@pytest.mark.parametrize(
    ("form", "text", "right"),
    [
        (tag("<a>", {"type": "any_text"}, "</a>"), "<a>x < y</a>", True),
        (tag("<a>", {"type": "any_text"}, "</a>"), "<a>x</a>y", False),
        (tag("<|im_start|>a", {"type": "any_text"}, "<|im_end|>\n"), "<|im_start|>a b <|im_end|>\n", True),
        (tag("", {"type": "any_text"}, "!"), "x!", None),
        ({"type": "regex", "pattern": ""}, "", True),
        ({"type": "regex", "pattern": "a/b"}, "a/b", True),
        ({"type": "any_text"}, "what < ever", True),
        ({"type": "grammar", "grammar": 'root ::= "a" [0-9]'}, "a7", True),
        ({"type": "structural_tag", "format": NUMBER}, "77", True),
        (
            {"type": "sequence", "elements": [{"type": "const_string", "value": "say "}, {"type": "any_text"}]},
            "say what",
            True,
        ),
    ],
)
def test_parts(words, form, text, right):
    if right is None:
        assert "begin must be a non-empty string" in validate.verdict(of_tags(form), words).error
    else:
        assert accepts(words, of_tags(form), text) == right


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "must be an object"),
        ({}, "needs a format"),
        ({"structures": [], "triggers": []}, "needs a format"),
        ({"structures": [5], "triggers": ["<"]}, "structures[0]"),
        ({"structures": [{"begin": "<a>"}]}, "triggers"),
        ({"structures": [{"begin": "a"}], "triggers": ["<"]}, "starts with none of the triggers"),
        ({"format": {"type": "qwen_xml_parameter"}}, "qwen_xml_parameter"),
        ({"format": {"type": "or", "elements": []}}, "format.elements"),
        ({"format": {"type": "json_schema", "json_schema": {"not": {}}}}, "nsatisfiable"),
        ({"format": {"type": "json_schema", "json_schema": 5}}, "object or a boolean"),
        ({"format": {"type": "sequence", "elements": [{"type": "any_text"}, NUMBER]}}, "elements[0] is any_text"),
        ({"format": {"type": "triggered_tags", "triggers": [""], "tags": [tag("a", NUMBER, "")]}}, "triggers"),
        ({"format": {"type": "grammar", "grammar": "start: nothing"}}, "nothing"),
    ],
)
def test_documents_that_are_refused(words, document, says):
    assert says in validate.verdict(Grammar(kind="structural_tag", text=json.dumps(document)), words).error


@pytest.mark.parametrize("end", ["</think>", "<|im_end|>"])
@pytest.mark.parametrize("kind", ["json_schema", "regex", "structural_tag"])
def test_a_grammar_may_hold_only_after_a_text(words, end, kind):
    text = {"json_schema": '{"const": 12}', "regex": "12", "structural_tag": json.dumps({"format": NUMBER})}[kind]
    grammar = Grammar(kind=kind, text=text, after=end)
    assert accepts(words, grammar, f"I think <b> 13 {end}12")
    assert not accepts(words, grammar, f"I think {end}x")
    assert not accepts(words, grammar, "12")
