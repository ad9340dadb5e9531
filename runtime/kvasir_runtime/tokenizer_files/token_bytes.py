"""The bytes that each token of a tokenizer stands for, byte-level (GPT-2's spelling) or of sentencepiece's."""

import re
from typing import Final

from tokenizers import Tokenizer as Encoder

from kvasir_runtime.tokenizer_files.byte_letters import BYTES_OF, LETTER_OF

SPACE: Final = "▁"
BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(encoder: Encoder, size: int) -> list[bytes]:
    """By id the bytes of a token, of a special or added one those of its name; nothing for ids without a token.

    size: of the table; ids from there on are left out.
    """
    found, added = [b""] * size, {number: token.content for number, token in encoder.get_added_tokens_decoder().items()}
    of_letters = _is_byte_level(encoder)
    for name, number in encoder.get_vocab().items():
        if number >= size:
            continue
        if number in added:
            found[number] = added[number].encode()
        elif of_letters:
            found[number] = _from_letters(name)
        elif byte := BYTE.fullmatch(name):
            found[number] = bytes.fromhex(byte[1])
        else:
            found[number] = name.replace(SPACE, " ").encode()
    return found


def _is_byte_level(encoder: Encoder) -> bool:
    """Whether the letter of the space is decoded as a space."""
    number = encoder.token_to_id(LETTER_OF[ord(" ")])
    return number is not None and encoder.decode([number]) == " "


def _from_letters(name: str) -> bytes:
    try:
        return bytes([BYTES_OF[letter] for letter in name])
    except KeyError:  # a token that is spelled in plain text
        return name.encode()
