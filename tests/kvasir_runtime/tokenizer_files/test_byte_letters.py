"""The spelling of bytes is GPT-2's."""

from tokenizers import pre_tokenizers

from kvasir_runtime.tokenizer_files.byte_letters import BYTES_OF, LETTER_OF


def test_letters_are_those_of_the_library() -> None:
    assert set(BYTES_OF) == set(pre_tokenizers.ByteLevel.alphabet())
    assert {byte: letter for letter, byte in BYTES_OF.items()} == LETTER_OF
    assert (LETTER_OF[ord(" ")], LETTER_OF[ord("a")], LETTER_OF[10]) == ("Ġ", "a", "Ċ")
