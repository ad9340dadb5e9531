"""Tokens as bytes, however a tokenizer spells them."""

import pytest

from fakes.tokenizer_families import family
from kvasir_runtime.tokenizer_files.token_bytes import token_bytes


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "llama3", "llama2", "gemma"])
def test_the_bytes_of_a_texts_tokens_are_the_text(name: str) -> None:
    encoder = family(name)
    table = token_bytes(encoder, encoder.get_vocab_size())
    text = "The plan: Grüße, 你好 🙂\n\tx = 1<|im_end|>"
    joined = b"".join(table[number] for number in encoder.encode(text, add_special_tokens=False).ids)
    assert joined.removeprefix(b" ").decode() == text


def test_ids_without_a_token_have_no_bytes_and_others_are_left_out() -> None:
    encoder = family("qwen2")
    size = encoder.get_vocab_size()
    assert token_bytes(encoder, size + 3)[size:] == [b"", b"", b""]
    assert len(token_bytes(encoder, 5)) == 5
