"""Long texts: the same ids as in one piece, no more work than needed, and known parts from the cache."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import tokenizer_families
from fakes.counting_encoder import CountingEncoder
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.text_encoder import TextEncoder

SPLIT = [name for name in tokenizer_families.NAMES if name not in tokenizer_families.UNSPLIT]
WORDS = st.lists(st.sampled_from(["a", "Word", " ", " ", "\n", ",", "你好", "。", "1", "it's", "<|im_end|>", "é"]))
TEXTS = st.lists(WORDS.map("".join), max_size=20).map(" and ".join)


@cache
def encoders(name: str) -> TextEncoder:
    """Kept between examples, so that most parts come from the cache."""
    return TextEncoder(tokenizer_families.family(name), part_characters=8)


def counting(name: str = "llama3", **options) -> tuple[CountingEncoder, TextEncoder]:
    encoder = CountingEncoder(tokenizer_families.family(name))
    return encoder, TextEncoder(encoder, part_characters=100, **options)


@pytest.mark.parametrize("name", SPLIT)
@given(text=TEXTS, more=TEXTS, enough=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_ids_are_those_of_the_whole_text(name, text, more, enough):
    parts, whole = encoders(name), tokenizer_families.family(name)
    for one in (text, text + more, text):  # the second is a follow-up, the third is known
        want = whole.encode(one, add_special_tokens=False).ids
        assert parts.ids(one) == want
        first, last = parts.ids(one, enough), parts.last_ids(one, enough)
        assert first == want[: len(first)]
        assert len(first) >= min(enough, len(want))
        assert last == want[len(want) - len(last) :]
        assert len(last) >= min(enough, len(want))
        beginning = whole.encode(parts.beginning(one, enough), add_special_tokens=False).ids
        assert beginning == want[: len(beginning)]
        assert len(beginning) >= min(enough, len(want))


def test_only_what_is_needed_is_tokenized():
    encoder, parts = counting()
    text = "some words " * 100_000
    parts.last_ids(text, 10)
    parts.ids(text, 10)
    parts.beginning(text, 10)
    assert encoder.characters < 600


def test_a_follow_up_tokenizes_what_is_new():
    encoder, parts = counting()
    text = "some words and so on " * 1000
    parts.ids(text)
    encoder.characters = 0
    parts.ids(text + "a new question")
    assert encoder.characters < 300


def test_what_was_remembered_with_another_salt_is_not_found():
    encoder, parts = counting()
    text = " ".join(f"word{number} and" for number in range(1000))
    want = parts.ids(text)
    encoder.characters = 0
    assert parts.ids(text, salt=b"tenant") == want
    assert encoder.characters == len(text)
    assert parts.ids(text, salt=b"tenant") == want
    assert encoder.characters < len(text) + 200


def test_the_cache_is_bounded():
    encoder, parts = counting(cache_bytes=2000)
    for number in range(50):
        parts.ids(f"text number {number} " * 20)
    encoder.characters = 0
    parts.ids("text number 0 " * 20)
    assert encoder.characters > 200


@pytest.mark.parametrize("name", ["llama3", "looks-back"])
def test_a_text_that_cannot_be_split_is_tokenized_up_to_a_bound(name):
    _, parts = counting(name, max_part_characters=1000)
    want = tokenizer_families.family(name).encode("x" * 999, add_special_tokens=False).ids
    assert parts.ids("x" * 999) == want == parts.last_ids("x" * 999, 5000)
    for call in (parts.ids, lambda text: parts.last_ids(text, 10), lambda text: parts.beginning(text, 10)):
        with pytest.raises(Refused, match="at most 1000 are tokenized in one piece"):
            call("x" * 3000)
