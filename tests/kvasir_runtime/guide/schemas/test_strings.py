"""Patterns of names: what they match is what they say."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.guide.schemas import strings

TEXTS = st.text(st.sampled_from("ab.$^\\\n-é"), max_size=4)


@given(st.sets(TEXTS, max_size=5), TEXTS)
def test_none_of_some_texts_is_any_other(texts, text):
    assert bool(re.search(python(strings.none_of(texts)), text)) == (text not in texts)


@given(st.sets(TEXTS, min_size=1, max_size=5), TEXTS)
def test_one_of_some_texts(texts, text):
    assert bool(re.search(python(strings.one_of(texts)), text)) == (text in texts)


def python(pattern):
    """The same for Python, whose $ also stands before a last line break and whose code points have no braces."""
    return re.sub(r"\\x\{(\w+)\}", lambda found: f"\\x{int(found[1], 16):02x}", pattern)[:-1] + r"\Z"


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"),
    [
        ({"pattern": "^a"}, ["a", "ab"], ["b", ""]),
        ({"enum": ["a", "b", 1]}, ["a", "b"], ["1", "ab"]),
        ({"const": "a.b"}, ["a.b"], ["axb"]),
        ({"type": "string", "minLength": 2}, ["ab", "abc"], ["a"]),
        ({"maxLength": 2.0}, ["", "ab"], ["abc"]),
    ],
)
def test_names(schema, allowed, forbidden):
    pattern = re.compile(
        python(strings.names(schema)) if strings.names(schema).endswith("$") else strings.names(schema)
    )
    assert [bool(pattern.search(text)) for text in allowed] == [True] * len(allowed)
    assert [bool(pattern.search(text)) for text in forbidden] == [False] * len(forbidden)


@pytest.mark.parametrize("schema", [True, {}, {"not": {"const": "a"}}, {"pattern": "a", "maxLength": 2}])
def test_names_without_a_simple_pattern(schema):
    assert strings.names(schema) is None


@pytest.mark.parametrize(("pattern", "found"), [("^a", True), ("^b", False), ("a(", False), ("b", True)])
def test_matches(pattern, found):
    assert strings.matches(pattern, "ab") == found
