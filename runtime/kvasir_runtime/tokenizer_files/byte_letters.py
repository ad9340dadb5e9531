"""GPT-2's spelling of bytes as printable characters, in which byte-level vocabularies are written."""

from typing import Final


def _bytes_of() -> dict[str, int]:
    """Printable bytes as themselves, the others from 256 on, in order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTES_OF: Final = _bytes_of()
LETTER_OF: Final = {byte: letter for letter, byte in BYTES_OF.items()}
