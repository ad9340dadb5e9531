"""Splitting a text never changes its ids, whatever the tokenizer; where that cannot be shown, nothing is split."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

from fakes import tokenizer_families
from kvasir_runtime.frontend.split_points import SplitPoints

WORDS = [
    "word",
    "Two",
    "naïve",
    "你好",
    "世界",
    "é",
    "é",
    "it's",
    "DON'T",
    "12345",
    "½",
    "²",
    "_x",
    "<|im_start|>",
    "</s>",
    "。",
    "，",
]
BLANKS = [" ", "  ", "\n", "\n\n", " \n", "\t", "\r\n", "\u200d", "\u00a0"]
OTHERS = [*BLANKS, ". ", ", ", ",", "'", "!!", "(", "🙂", "▁"]
PIECES = st.sampled_from([*WORDS, *OTHERS])
TEXTS = st.lists(PIECES, max_size=60).map("".join) | st.text(max_size=80)


@cache
def points_of(name: str) -> SplitPoints:
    return SplitPoints(tokenizer_families.family(name))


@cache
def with_token(token: str) -> tuple[Encoder, SplitPoints]:
    """A tokenizer with an added token, and where it may be split."""
    encoder = Encoder.from_str(tokenizer_families.family("llama3").to_str())
    encoder.add_tokens([AddedToken(token, normalized=False)])
    return encoder, SplitPoints(encoder)


def splits(points: SplitPoints, text: str) -> list[tuple[int, int]]:
    found, start = [], 0
    while (split := points.first(text, start, len(text))) is not None:
        found.append((split.left, split.right))
        start = split.right
    return found


@pytest.mark.parametrize("name", tokenizer_families.NAMES)
def test_families_that_can_be_split_are(name):
    points = points_of(name)
    assert points.exist is (name not in tokenizer_families.UNSPLIT)
    prose = "Words with blanks between them, and nothing else\n"
    assert bool(splits(points, prose)) is points.exist


@pytest.mark.parametrize("name", [name for name in tokenizer_families.NAMES if name not in tokenizer_families.UNSPLIT])
@given(text=TEXTS)
@settings(max_examples=150, deadline=None)
def test_parts_have_the_ids_of_the_whole(name, text):
    encoder = tokenizer_families.family(name)
    ids, start = [], 0
    for left, right in splits(points_of(name), text):
        ids += encoder.encode(text[start:left], add_special_tokens=False).ids
        start = right
    ids += encoder.encode(text[start:], add_special_tokens=False).ids
    assert ids == encoder.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("token", ["foo ", " foo", "\nfoo", "foo\n", "foo", "foo,", ",foo", " ", "\n", ". foo"])
@given(text=st.lists(st.sampled_from(["foo", "a", "Z", "中", " ", " ", "\n", ",", ".", "1"]), max_size=24).map("".join))
@settings(max_examples=150, deadline=None)
def test_parts_have_the_ids_of_the_whole_with_added_tokens(token, text):
    encoder, points = with_token(token)
    ids, start = [], 0
    for left, right in splits(points, text):
        ids += encoder.encode(text[start:left], add_special_tokens=False).ids
        start = right
    ids += encoder.encode(text[start:], add_special_tokens=False).ids
    assert ids == encoder.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "token",
    [
        AddedToken("two words", normalized=False),
        AddedToken("mask", lstrip=True, normalized=False),
        AddedToken("end", rstrip=True, normalized=False),
        AddedToken("a\nb", normalized=False),
        AddedToken("foo ", normalized=False),
        AddedToken(" foo", normalized=False),
        AddedToken("\nfoo", normalized=False),
    ],
)
def test_an_added_token_that_could_lie_across_a_place_forbids_them(token):
    encoder = Encoder.from_str(tokenizer_families.family("llama3").to_str())
    encoder.add_tokens([token])
    assert not SplitPoints(encoder).exist


def test_a_token_across_words_forbids_their_border():
    """Merges that reach over a blank make both sides depend on each other."""
    assert not points_of("no-splitting").exist
