"""Answers that are checked while they are written: what cannot be ended is refused, and there is always an end."""

import json

import jsonschema
import numpy as np
import pytest

from fakes import guided_walks
from fakes.grammars import of_schema, of_tags, tag
from kvasir_runtime.guide import validate
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.matcher import GrammarMatcher
from kvasir_runtime.wire import Grammar, SamplingConfig

PAIR = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 2, "maxItems": 2}
COMPACT = {**PAIR, "x-guidance": {"whitespace_flexible": False}}


def begun(words, grammar, text=""):
    """A guide that has been given the letters of a text."""
    found = validate.verdict(grammar, words)
    assert found.error == ""
    assert found.grammar.check
    guide = guided_walks.matcher_of(found.grammar, words, 0)
    for letter in text:
        (token,) = words.tokenizer.tokenize_str(letter)
        assert guide.admits(token), (text, letter)
        assert not guide.take(token, room=0).error
    return guide


def admitted(words, guide, texts):
    return [text for text in texts if guide.admits(words.tokenizer.tokenize_str(text)[0])]


@pytest.mark.parametrize(
    ("text", "letters", "right"),
    [('["', "ab", "ab"), ('["a","', "ab", "b"), ('["b","', "ab", "a"), ('["a","b"', "]", "]")],
)
def test_only_what_can_be_ended_may_be_written(words, text, letters, right):
    """At the letter that would make two items the same, not at the bracket behind it."""
    assert admitted(words, begun(words, of_schema(COMPACT), text), letters) == [*right]


def test_the_letter_of_a_second_equal_item_is_refused(words):
    guide = begun(words, of_schema(COMPACT), '["a","')
    assert admitted(words, guide, "ab") == ["b"]
    guide.admits(words.tokenizer.tokenize_str("a")[0])
    assert words.tokenizer.decode_bytes([guide.token_to_end()]) == b"b"


def test_an_answer_that_only_may_not_go_on_ends(words):
    """Also where it is complete: its end is a token, which may be drawn in place of those that were refused."""
    guide = begun(words, of_schema({"type": "number", "multipleOf": 1e-15}), "0.000000000000001")
    assert admitted(words, guide, "123456789") == []
    token = guide.token_to_end()
    assert token == 0
    taken = guide.take(token, room=0)
    assert (taken.ended, taken.error) == (True, "")


def test_calls_are_checked_in_tags(words):
    """Each of several, and only from its beginning on: what comes before is free."""
    call = tag("<f>", {"type": "json_schema", "json_schema": PAIR}, "</f>")
    grammar = of_tags({"type": "triggered_tags", "triggers": ["<f>"], "tags": [call]})
    guide = begun(words, grammar, 'so ["a","a"] <f>["b", "a"]</f> and <f>["a", "')
    assert admitted(words, guide, "ab") == ["b"]
    vocab_size = words.tokenizer.vocab_size
    closing = [words.tokenizer.tokenize_str(text)[0] for text in '"],<']
    ended = 0
    for seed in range(6):
        guide = begun(words, grammar, "so <f>[")
        tokens = guided_walks.written(guide, np.random.default_rng(seed), vocab_size, closing=closing)
        if tokens is not None:
            ended += 1
            text = "[" + words.tokenizer.decode_str(tokens)
            for part in ("<f>" + text).split("<f>")[1:]:
                jsonschema.validate(json.loads(part.partition("</f>")[0]), PAIR)
    assert ended


def test_the_check_begins_behind_the_thoughts(words):
    grammar = Grammar(kind="json_schema", text=json.dumps(COMPACT), after="</think>")
    guide = begun(words, grammar, '["a","a"]</think>["a","')
    assert admitted(words, guide, "ab") == ["b"]


def test_an_answer_goes_on_where_it_stood(words):
    """After a preemption, from its tokens; a copy of the check is another answer."""
    found = validate.verdict(of_schema(COMPACT), words).grammar
    checker, sampling = words.checker(found), SamplingConfig(max_tokens=1, grammar=found)
    answered = [token for letter in '["b","' for token in words.tokenizer.tokenize_str(letter)]
    guide = GrammarMatcher(words.matcher(found), sampling, (0,), answered, checker.copy())
    assert admitted(words, guide, "ab") == ["a"]
    other = GrammarMatcher(words.matcher(found), sampling, (0,), (), checker.copy())
    assert admitted(words, other, "[") == ["["]


def test_what_was_not_admitted_ends_the_answer_with_a_reason(words):
    guide = begun(words, of_schema(COMPACT), '["a","')
    taken = guide.take(words.tokenizer.tokenize_str("a")[0], room=0)
    assert "no way was found" in taken.error
    assert not guide.is_checked


@pytest.mark.parametrize(
    "schema",
    [
        {**PAIR, "minItems": 3, "maxItems": 3},
        {"type": "object", "properties": {"x": {**PAIR, "maxItems": 3, "minItems": 3}}, "required": ["x"]},
    ],
)
def test_a_schema_without_an_answer_is_refused(words, schema):
    found = validate.verdict(of_schema(schema), words)
    assert "nothing that fits it was found" in found.error


def test_references_are_not_followed_by_the_validator(words):
    found = validate.verdict(of_schema(COMPACT), words).grammar
    hostile = Grammar(
        kind="json_schema", text=found.text, check=json.dumps({"json": {"$ref": "https://example.com/x"}})
    )
    with pytest.raises(GrammarError, match="cannot be validated"):
        words.checker(hostile)
