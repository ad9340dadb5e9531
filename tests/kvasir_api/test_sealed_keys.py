"""Keys that are sealed to one process can be opened by that process alone."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.sealed_keys import KEY_BYTES, MOST_CHARACTERS, MOST_KEYS, SealingKey, keys_digest, sealed

KEYS = (b"a" * KEY_BYTES, b"b" * KEY_BYTES)
PROCESS = SealingKey()


def test_the_process_opens_them_and_no_other_does():
    text = sealed(KEYS, PROCESS.public, "i1")
    assert PROCESS.opened(text, "i1") == KEYS
    for process, instance in ((PROCESS, "i2"), (SealingKey(), "i1")):
        with pytest.raises(ValueError, match="not sealed to this process"):
            process.opened(text, instance)


def test_no_two_texts_are_alike_and_the_longest_fits():
    texts = {sealed(KEYS * (MOST_KEYS // 2), PROCESS.public, "i1") for _ in range(9)}
    assert len(texts) == 9
    assert max(map(len, texts)) <= MOST_CHARACTERS


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_bit_can_be_changed(place, bit):
    raw = bytearray(base64.urlsafe_b64decode(sealed(KEYS, PROCESS.public, "i1")))
    raw[place % len(raw)] ^= 1 << bit
    with pytest.raises(ValueError, match="not sealed to this process"):
        PROCESS.opened(base64.urlsafe_b64encode(raw).decode(), "i1")


@pytest.mark.parametrize("text", ["", "x", "ü", "A" * 100, base64.b64encode(bytes(range(200))).decode()])
def test_what_is_no_sealed_text_is_refused(text):
    with pytest.raises(ValueError, match="not sealed to this process"):
        PROCESS.opened(text, "i1")


@pytest.mark.parametrize("keys", [(), KEYS * MOST_KEYS, (b"short",)])
def test_a_list_of_another_shape_is_refused(keys):
    with pytest.raises(ValueError, match="expected 1 to 8 keys of 32 bytes"):
        PROCESS.opened(sealed(keys, PROCESS.public, "i1"), "i1")


@pytest.mark.parametrize("public", ["", "x", "AAAA", "ü"])
def test_nothing_is_sealed_to_what_is_no_key(public):
    with pytest.raises(ValueError, match=r".+"):
        sealed(KEYS, public, "i1")


def test_a_digest_names_keys_in_their_order():
    assert keys_digest(()) == ""
    assert len({keys_digest(KEYS), keys_digest(KEYS[::-1]), keys_digest(KEYS[:1])}) == 3
