"""Incremental text equals the decoded whole and never shows half a character."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders

from fakes import tiny_tokenizer
from kvasir_runtime.frontend.detokenizer import MAX_WINDOW, REPLACEMENT, ByteDetokenizer, Decoding, Detokenizer

BYTE_LEVEL = tiny_tokenizer.byte_level()
BYTE_FALLBACK = tiny_tokenizer.byte_fallback()
BY_BYTES = tiny_tokenizer.tokenizer().decoding(frozenset(tiny_tokenizer.tokenizer().special_tokens))
IDS = st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=120)


def decode(encoder):
    return lambda ids: encoder.decode(ids, skip_special_tokens=True)


DECODINGS = {
    "byte level by its bytes": (BYTE_LEVEL, BY_BYTES),
    "byte level": (BYTE_LEVEL, Decoding(decode(BYTE_LEVEL))),
    "byte fallback": (BYTE_FALLBACK, Decoding(decode(BYTE_FALLBACK))),
}
OF_BYTES = pytest.mark.parametrize("name", ["byte level by its bytes", "byte level"])


def pieces(name, ids, cuts=()):
    """What comes out id by id, or in the groups that cuts make, and at the end."""
    detokenizer = DECODINGS[name][1].detokenizer()
    borders = [0, *sorted({cut % (len(ids) + 1) for cut in cuts}), len(ids)] if cuts else range(len(ids) + 1)
    groups = [ids[a:b] for a, b in pairwise(borders)]
    return [*(detokenizer.push(group) for group in groups), detokenizer.flush()]


@OF_BYTES
@given(ids=IDS)
def test_any_ids_of_a_byte_level_tokenizer_give_the_decoded_whole(name, ids):
    assert "".join(pieces(name, ids)) == decode(BYTE_LEVEL)(ids)


@OF_BYTES
@given(ids=IDS, cuts=st.lists(st.integers(0, 200), min_size=1, max_size=10))
def test_grouping_of_ids_into_steps_changes_nothing(name, ids, cuts):
    assert "".join(pieces(name, ids, cuts)) == decode(BYTE_LEVEL)(ids)


@pytest.mark.parametrize("name", DECODINGS)
@given(text=st.text(max_size=60))
def test_no_piece_of_a_valid_text_has_half_a_character(name, text):
    encoder, _ = DECODINGS[name]
    ids = encoder.encode(text, add_special_tokens=False).ids
    want = decode(encoder)(ids)
    got = pieces(name, ids)
    assert "".join(got) == want
    if REPLACEMENT not in want:
        assert not any(REPLACEMENT in piece for piece in got)


@OF_BYTES
@given(text=st.text(alphabet="你好🙂🚀é", min_size=1, max_size=40))
def test_single_bytes_of_wide_characters_come_out_whole(name, text):
    ids = [BYTE_LEVEL.token_to_id(c) for byte in text.encode() for c in _alphabet(byte)]
    got = pieces(name, ids)
    assert "".join(got) == text
    assert all(len(piece) <= 1 for piece in got)


@given(
    parts=st.lists(
        st.one_of(st.binary(min_size=1, max_size=5), st.sampled_from([s.encode() for s in ("the", "你", "🙂")]))
    )
)
def test_wrong_bytes_never_take_back_what_was_sent_nor_eat_what_follows(parts):
    ids = [BYTE_FALLBACK.token_to_id(f"<0x{byte:02X}>") for part in parts for byte in part]
    word = BYTE_FALLBACK.token_to_id("▁plan")
    assert "".join(pieces("byte fallback", [*ids, word])).endswith("plan")


@given(text=st.text(alphabet="ab 你🙂", max_size=20), garbage=st.integers(1, 400))
def test_a_long_run_of_wrong_bytes_costs_a_bounded_window(text, garbage):
    lengths = []

    def counting(ids):
        lengths.append(len(ids))
        return decode(BYTE_LEVEL)(ids)

    wrong = BYTE_LEVEL.token_to_id(_alphabet(0xFF)[0])
    ids = [wrong] * garbage + BYTE_LEVEL.encode(text).ids
    detokenizer = Detokenizer(counting)
    got = "".join([detokenizer.push([token_id]) for token_id in ids]) + detokenizer.flush()
    assert got == REPLACEMENT * garbage + text
    assert max(lengths) <= MAX_WINDOW


def test_a_completion_keeps_the_blank_before_its_first_word():
    prompt = BYTE_FALLBACK.encode("the").ids
    word = BYTE_FALLBACK.token_to_id("▁plan")
    assert Detokenizer(decode(BYTE_FALLBACK), prompt).push([word]) == " plan"
    assert Detokenizer(decode(BYTE_FALLBACK)).push([word]) == "plan"


def test_blanks_between_words_survive_the_moving_window():
    word = BYTE_FALLBACK.token_to_id("▁plan")
    assert "".join(pieces("byte fallback", [word] * 100)) == " ".join(["plan"] * 100)


@OF_BYTES
def test_a_prompt_that_ends_inside_a_character_is_completed_by_the_answer(name):
    ids = [BYTE_LEVEL.token_to_id(_alphabet(byte)[0]) for byte in "é".encode()]
    assert DECODINGS[name][1].detokenizer(ids[:1]).push(ids[1:]) == "é"


def test_added_tokens_are_their_bytes_or_as_they_are_written():
    """As the decoder of bytes has it: a token with one letter that stands for no byte is none of them."""
    encoder = Encoder.from_str(BYTE_LEVEL.to_str())
    encoder.add_tokens(["  ", "Ġé", "<call>", "一x"])
    encoder.add_special_tokens(["<end>"])
    tokenizer = replace(tiny_tokenizer.tokenizer(), encoder=encoder)
    ids = [encoder.token_to_id(token) for token in ("  ", "Ġé", "<call>", "一x", "<end>", "a")] + [10_000]
    for hidden in (frozenset(), frozenset(tokenizer.special_tokens)):
        decoding = tokenizer.decoding(hidden)
        assert isinstance(decoding.detokenizer(), ByteDetokenizer)
        for cut in range(len(ids) + 1):
            got = decoding.detokenizer()
            assert got.push(ids[:cut]) + got.push(ids[cut:]) + got.flush() == decoding.decode(ids)


@pytest.mark.parametrize("decoder", [decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]), None])
def test_a_decoder_that_does_more_than_bytes_is_asked_for_whole_texts(decoder):
    encoder = Encoder.from_str(BYTE_LEVEL.to_str())
    encoder.decoder = decoder
    tokenizer = replace(tiny_tokenizer.tokenizer(), encoder=encoder)
    assert isinstance(tokenizer.decoding(frozenset()).detokenizer(), Detokenizer)


@OF_BYTES
def test_an_unfinished_character_at_the_end_is_flushed_as_a_replacement(name):
    wide = BYTE_LEVEL.token_to_id(_alphabet(0xF0)[0])
    detokenizer = DECODINGS[name][1].detokenizer()
    assert detokenizer.push([wide]) == ""
    assert detokenizer.flush() == REPLACEMENT
    assert detokenizer.flush() == ""


def _alphabet(byte):
    """The character that stands for a byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in plain:
        return [chr(byte)]
    return [chr(256 + [b for b in range(256) if b not in plain].index(byte))]
