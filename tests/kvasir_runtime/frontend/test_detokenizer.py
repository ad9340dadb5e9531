"""Incremental text equals the decoded whole and never shows half a character."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import tiny_tokenizer
from kvasir_runtime.frontend.detokenizer import MAX_WINDOW, REPLACEMENT, Detokenizer

BYTE_LEVEL = tiny_tokenizer.byte_level()
BYTE_FALLBACK = tiny_tokenizer.byte_fallback()
ENCODERS = {"byte level": BYTE_LEVEL, "byte fallback": BYTE_FALLBACK}
IDS = st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=120)


def decode(encoder):
    return lambda ids: encoder.decode(ids, skip_special_tokens=True)


def pieces(encoder, ids, cuts=()):
    """What comes out id by id, or in the groups that cuts make, and at the end."""
    detokenizer = Detokenizer(decode(encoder))
    borders = [0, *sorted({cut % (len(ids) + 1) for cut in cuts}), len(ids)] if cuts else range(len(ids) + 1)
    groups = [ids[a:b] for a, b in pairwise(borders)]
    return [*(detokenizer.push(group) for group in groups), detokenizer.flush()]


@given(ids=IDS)
def test_any_ids_of_a_byte_level_tokenizer_give_the_decoded_whole(ids):
    assert "".join(pieces(BYTE_LEVEL, ids)) == decode(BYTE_LEVEL)(ids)


@given(ids=IDS, cuts=st.lists(st.integers(0, 200), min_size=1, max_size=10))
def test_grouping_of_ids_into_steps_changes_nothing(ids, cuts):
    assert "".join(pieces(BYTE_LEVEL, ids, cuts)) == decode(BYTE_LEVEL)(ids)


@pytest.mark.parametrize("name", ENCODERS)
@given(text=st.text(max_size=60))
def test_no_piece_of_a_valid_text_has_half_a_character(name, text):
    encoder = ENCODERS[name]
    ids = encoder.encode(text, add_special_tokens=False).ids
    want = decode(encoder)(ids)
    got = pieces(encoder, ids)
    assert "".join(got) == want
    if REPLACEMENT not in want:
        assert not any(REPLACEMENT in piece for piece in got)


@given(text=st.text(alphabet="你好🙂🚀é", min_size=1, max_size=40))
def test_single_bytes_of_wide_characters_come_out_whole(text):
    ids = [BYTE_LEVEL.token_to_id(c) for byte in text.encode() for c in _alphabet(byte)]
    got = pieces(BYTE_LEVEL, ids)
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
    assert "".join(pieces(BYTE_FALLBACK, [*ids, word])).endswith("plan")


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
    assert "".join(pieces(BYTE_FALLBACK, [word] * 100)) == " ".join(["plan"] * 100)


def test_a_prompt_that_ends_inside_a_character_is_completed_by_the_answer():
    ids = [BYTE_LEVEL.token_to_id(_alphabet(byte)[0]) for byte in "é".encode()]
    assert Detokenizer(decode(BYTE_LEVEL), ids[:1]).push(ids[1:]) == "é"


def test_an_unfinished_character_at_the_end_is_flushed_as_a_replacement():
    wide = BYTE_LEVEL.token_to_id(_alphabet(0xF0)[0])
    detokenizer = Detokenizer(decode(BYTE_LEVEL))
    assert detokenizer.push([wide]) == ""
    assert detokenizer.flush() == REPLACEMENT
    assert detokenizer.flush() == ""


def _alphabet(byte):
    """The character that stands for a byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in plain:
        return [chr(byte)]
    return [chr(256 + [b for b in range(256) if b not in plain].index(byte))]
