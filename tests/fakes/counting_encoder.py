"""A tokenizer's library that counts the characters it is given."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as Encoder


class CountingEncoder:
    """Everything else is the encoder's."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.characters = encoder, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def encode_batch_fast(self, texts: Sequence[str], **options: bool) -> Any:
        """As the encoder's."""
        self.characters += sum(map(len, texts))
        return self.encoder.encode_batch_fast(texts, **options)

    def counted(self) -> int:
        """Characters since the last call."""
        found, self.characters = self.characters, 0
        return found
