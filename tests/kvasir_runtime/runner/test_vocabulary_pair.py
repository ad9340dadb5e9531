"""Texts go from one vocabulary to the other and back, wherever they are cut."""

import random
from dataclasses import replace
from functools import cache
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Encoding
from tokenizers import Tokenizer as Encoder

from fakes.tokenizer_families import family
from fakes.tokenizer_families import text as pages
from kvasir_runtime.runner.vocabulary_pair import AlignedText, TextVocabulary, VocabularyPair

NAMES = ("qwen2", "llama3", "llama2", "metaspace", "gemma")
PAIRS = [("qwen2", "llama2"), ("llama2", "llama3"), ("llama3", "gemma"), ("gemma", "qwen2"), ("metaspace", "llama3")]
TEXT = "The scheduler plans a step: Grüße, 你好 🙂. It computes 12345 tokens,\n    then `commit()` appends them."


@cache
def vocabulary(name: str) -> TextVocabulary:
    encoder = family(name)
    return TextVocabulary.of(encoder, encoder.get_vocab_size() + 2)


@cache
def pair(ours: str, theirs: str) -> VocabularyPair:
    return VocabularyPair(vocabulary(ours), vocabulary(theirs))


def joined(text: AlignedText) -> bytes:
    return b"".join(text.pair.theirs.bytes_of[number] for number in text.ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_of_bytes_keeps_texts(name: str) -> None:
    assert vocabulary(name).keeps_texts
    pieces = vocabulary(name).pieces(TEXT.encode())
    assert [place for _, place in pieces] == sorted({place for _, place in pieces})


def test_one_that_changes_texts_does_not() -> None:
    assert not vocabulary("bert").keeps_texts


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_tokens_of_the_same_bytes_are_common(ours: str, theirs: str) -> None:
    made = pair(ours, theirs)
    missing = len(made.theirs.bytes_of)
    same = {one: int(other) for one, other in enumerate(made.to_theirs) if other < missing}
    assert len(same) == made.num_common > 300
    assert all(made.ours.bytes_of[one] == made.theirs.bytes_of[other] for one, other in same.items())
    name = b"<|im_end|>"
    assert same[made.ours.bytes_of.index(name)] == made.theirs.bytes_of.index(name)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_a_text_that_grows_is_encoded_as_the_whole_text_is(ours: str, theirs: str) -> None:
    """But for single places where the cut hides from a tokenizer what stands before."""
    made, chance = pair(ours, theirs), random.Random(3)
    whole = pages()[2000:8000]
    tokens, grown = made.ours.encoded(whole.encode()), AlignedText(made)
    grown.follow(tokens[:100])
    place = 100
    while place < len(tokens):
        count = chance.randint(1, 9)
        grown.follow(tokens[place : place + count])
        place += count
    want = made.theirs.encoded(bytes(grown.text))
    assert grown.is_whole
    assert grown.text.decode().lstrip() == whole.lstrip()
    assert abs(len(grown.ids) - len(want)) <= 0.01 * len(want)
    assert joined(grown).lstrip() == bytes(grown.text).lstrip()


@pytest.mark.parametrize(("ours", "theirs"), PAIRS[:3])
@given(text=st.text(max_size=80), cuts=st.lists(st.integers(1, 7), min_size=1, max_size=60))
def test_tokens_are_the_bytes_of_any_text(ours: str, theirs: str, text: str, cuts: list[int]) -> None:
    """Of a text that both tokenizers keep; else they are some, and nothing fails."""
    made = pair(ours, theirs)
    tokens, grown, place = made.ours.encoded(text.encode()), AlignedText(made), 0
    for count in cuts:
        grown.follow(tokens[place : place + count])
        place += count
        assert len(grown.ids) == len(grown.starts)
        assert grown.num_encoded <= len(grown.text)
        grown.drafts(grown.ids[:5])
    grown.follow(tokens[place:])
    if made.ours.pieces(text.encode()) and made.theirs.pieces(bytes(grown.text)) and "<" not in text:
        assert grown.is_whole
        assert joined(grown).lstrip() == bytes(grown.text).lstrip()


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_what_is_written_comes_back_in_tokens_of_the_model(ours: str, theirs: str) -> None:
    made = pair(ours, theirs)
    tokens, cuts = made.ours.encoded(TEXT.encode()), 0
    for known in range(8, len(tokens) - 6):
        text = AlignedText(made)
        text.follow(tokens[:known])
        fresh = b"".join(made.ours.bytes_of[number] for number in tokens[known : known + 5])
        pieces = made.theirs.pieces(bytes(text.text) + fresh)
        written = [number for number, place in pieces if place >= len(text.text)]
        if all(place != len(text.text) for _, place in pieces):
            continue  # within a character, or a token of the draft model that begins before
        assert text.drafts(written)[:3] == tokens[known : known + 3]
        cuts += 1
    assert cuts > 0.3 * len(tokens)


def test_bytes_that_begin_a_character_wait_for_the_rest() -> None:
    made = pair("qwen2", "llama2")
    smile = "🙂".encode()
    tokens = [made.ours.bytes_of.index(bytes([byte])) for byte in smile]
    text = AlignedText(made)
    text.follow(made.ours.encoded(b"well "))
    for token in tokens[:-1]:
        text.follow([token])
        assert not text.is_whole
    text.follow(tokens[-1:])
    assert text.is_whole
    assert bytes(text.text) == b"well " + smile


def test_bytes_that_are_no_text_are_read_as_such() -> None:
    made = pair("qwen2", "llama3")
    broken = [made.ours.bytes_of.index(bytes([byte])) for byte in (0xFF, 0x80, 0xC3, 0x41)]
    text = AlignedText(made)
    for token in broken * 20:
        text.follow([token])
    assert text.is_whole
    assert len(text.ids) >= 40
    assert isinstance(text.drafts(text.ids[:4]), list)


class Recorder:
    """An encoder that keeps how long the texts are that it encodes."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self.lengths = encoder, list[int]()

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        self.lengths.append(len(text))
        return self._encoder.encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("change", ["cafe\u0301", "\ufffd"])
def test_a_character_that_is_not_the_bytes_of_its_tokens_lets_no_long_text_be_encoded_again(change: str) -> None:
    """qwen2 composes characters, and of a byte that is no text any tokenizer makes another."""
    ours, theirs = vocabulary("llama2"), vocabulary("qwen2")
    recorder = Recorder(theirs.encoder)
    made = VocabularyPair(ours, replace(theirs, encoder=cast(Encoder, recorder)))
    lone = ours.bytes_of.index(b"\xff", 3)
    begins = [lone if change == "\ufffd" else number for number in ours.encoded(change.encode())]
    text = AlignedText(made)
    text.follow([*begins, *ours.encoded(pages()[:20_000].encode())])
    further = ours.encoded(b" and the engine goes on with plans that are longer" * 4)
    for number in further:
        del recorder.lengths[:]
        text.follow([number])
        assert sum(recorder.lengths) < 1000
    want = made.theirs.encoded(bytes(text.text))
    assert text.is_whole
    assert abs(len(text.ids) - len(want)) <= 4
    assert text.ids[-20:] == want[-20:]


def test_special_tokens_of_the_model_alone_are_left_out() -> None:
    ours, theirs = family("qwen2"), vocabulary("llama2")
    encoder = type(ours).from_str(ours.to_str())
    encoder.add_special_tokens(["<|alone|>"])
    made = VocabularyPair(TextVocabulary.of(encoder, encoder.get_vocab_size()), theirs)
    tokens = encoder.encode("a<|alone|>b<|im_end|>", add_special_tokens=False).ids
    assert made.spelled(tokens) == b"ab<|im_end|>"
