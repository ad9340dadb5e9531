"""Two vocabularies of which one drafts for the other: what their tokens have in common, and texts of one in the other.

Tokens are compared by the bytes that they stand for, and texts are aligned by bytes, so that it does not matter how a
tokenizer spells its tokens. Nothing here has to be right for an answer to be: drafts are verified.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Encoder

from kvasir_runtime.tokenizer_files.token_bytes import token_bytes

WINDOW: Final = 32
"""Tokens at the end of a text that are encoded again with what follows: it may join the last ones to longer tokens."""
MOST_KNOWN: Final = 1024
"""Bytes of the end of a text that are encoded with what was drafted behind it."""
CONTINUES: Final = 0x80
"""The upper two bits of a byte of UTF-8 that begins no character."""
SAMPLE: Final = "def f(x):\n    return 'Ünï' + str(12345)\n\nHello, world. 你好"
"""A text that a tokenizer has to keep byte by byte."""


@dataclass(frozen=True, slots=True)
class TextVocabulary:
    """One tokenizer. bytes_of: by id. prefix: ids that begin each text. specials: ids that no plain text spells."""

    encoder: Encoder
    bytes_of: list[bytes]
    prefix: tuple[int, ...]
    specials: frozenset[int]

    @classmethod
    def of(cls, encoder: Encoder, size: int) -> "TextVocabulary":
        """size: of the model's logits."""
        plain, whole = (encoder.encode("a", add_special_tokens=special).ids for special in (False, True))
        begins = whole.index(plain[0]) if plain and plain[0] in whole else 0
        specials = frozenset(number for number, token in encoder.get_added_tokens_decoder().items() if token.special)
        return cls(encoder, token_bytes(encoder, size), tuple(whole[:begins]), specials)

    def encoded(self, text: bytes) -> list[int]:
        """Ids of a text. What is no UTF-8 is replaced."""
        ids = self.encoder.encode(text.decode(errors="replace"), add_special_tokens=False).ids
        return [number for number in ids if number < len(self.bytes_of)]

    def pieces(self, text: bytes) -> list[tuple[int, int]]:
        """Ids of a text, each with the byte at which its token begins; none where the tokens are not its bytes.

        A space that a tokenizer puts before each text is no part of the first.
        """
        ids = self.encoded(text)
        joined = b"".join([self.bytes_of[number] for number in ids])
        ahead = len(joined) - len(text)
        if ahead not in (0, 1) or joined[ahead:] != text or joined[:ahead].strip():
            return []
        place, found = -ahead, list[tuple[int, int]]()
        for number in ids:
            begins, place = place, place + len(self.bytes_of[number])
            if place > 0:
                found.append((number, max(0, begins)))
        return found

    @property
    def keeps_texts(self) -> bool:
        """Whether texts are the bytes of their tokens."""
        return bool(self.pieces(SAMPLE.encode()))


class VocabularyPair:
    """ours: of the model that is drafted for. theirs: of the one that drafts."""

    __slots__ = ("num_common", "ours", "shared_specials", "theirs", "to_theirs")

    def __init__(self, ours: TextVocabulary, theirs: TextVocabulary) -> None:
        self.ours, self.theirs = ours, theirs
        by_bytes = {name: number for number, name in reversed(list(enumerate(theirs.bytes_of))) if name}
        missing = len(theirs.bytes_of)
        self.to_theirs: NDArray[np.int64] = np.array(
            [by_bytes.get(name, missing) if name else missing for name in ours.bytes_of], dtype=np.int64
        )
        """By id of ours the token of the same bytes in theirs, or the size of theirs where there is none."""
        self.num_common = int(np.count_nonzero(self.to_theirs < missing))
        self.shared_specials = frozenset(
            int(self.to_theirs[number]) for number in ours.specials if number < len(ours.bytes_of)
        )
        """Special tokens of theirs that ours has too, and the size of theirs."""

    def spelled(self, token_ids: list[int]) -> bytes:
        """The text of ids of ours. A special token that the others do not have is left out."""
        ours, missing = self.ours, len(self.theirs.bytes_of)
        return b"".join(
            [
                ours.bytes_of[number]
                for number in token_ids
                if number < len(ours.bytes_of) and (number not in ours.specials or self.to_theirs[number] < missing)
            ]
        )


@dataclass(slots=True)
class AlignedText:
    """A growing text in tokens of theirs. num_tokens: of ours that it has taken in.

    ids: behind the prefix, of as much of the text as ends behind a character; starts: the byte at which each begins, if
    it is one of those that may become others.
    """

    pair: VocabularyPair
    num_tokens: int = 0
    text: bytearray = field(default_factory=bytearray)
    ids: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    num_encoded: int = 0
    """Bytes of the text that ids are of."""
    num_settled: int = 0
    settled_bytes: int = 0
    """The first ids stay, of so many bytes, some of which are not those of their tokens."""

    @property
    def is_whole(self) -> bool:
        """Whether tokens can follow: the text ends behind a character."""
        return self.num_encoded == len(self.text)

    def follow(self, token_ids: list[int]) -> None:
        """Take in further tokens of ours. Up to WINDOW of the ids may become others, those that the text goes on in."""
        self.num_tokens += len(token_ids)
        self.text += self.pair.spelled(token_ids)
        end = len(self.text) - _open_bytes(self.text)
        if end > self.num_encoded:
            self._encode(end)

    def drafts(self, drafted: Sequence[int]) -> list[int]:
        """Ids of ours for what was drafted behind the text; none where no token of ours begins there."""
        fresh = b"".join([self.pair.theirs.bytes_of[number] for number in drafted])
        fresh = fresh[: len(fresh) - _open_bytes(fresh)]
        if not fresh:
            return []
        begins = max(self.text.rfind(b" ", 0, max(0, len(self.text) - WINDOW)), 0)
        known, ours = len(self.text) - begins, self.pair.ours
        found = ours.pieces(bytes(self.text[begins:]) + fresh) if known <= MOST_KNOWN else []
        if all(place != known for _, place in found):
            found, known = ours.pieces(fresh), 0
        return [number for number, place in found if place >= known]

    def _encode(self, end: int) -> None:
        """Encode up to a byte, from some tokens back; what tokens of before and now have in common stays.

        What is encoded again is the text of WINDOW tokens at most, also behind one that is not the bytes of its tokens.
        """
        theirs, kept = self.pair.theirs, max(self.num_settled, len(self.ids) - WINDOW)
        while kept > self.num_settled and self.text[self.starts[kept]] & 0xC0 == CONTINUES:
            kept -= 1
        is_cut = kept > self.num_settled
        begins = self.starts[kept] if is_cut else self.settled_bytes
        found = [(number, begins + place) for number, place in theirs.pieces(bytes(self.text[begins:end]))]
        if is_cut:  # the first of them may be what they are because the text before them is missing
            known = set(zip(self.ids[kept:], self.starts[kept:], strict=True))
            agrees = next((index for index, one in enumerate(found) if one in known), len(found))
            found = found[agrees:]
            kept = self.starts.index(found[0][1], kept) if found else kept
        is_bytes = bool(found)
        if not is_bytes:  # no token of both, or one that is not its bytes
            kept = len(self.ids)
            found = [(number, end) for number in theirs.encoded(bytes(self.text[self.num_encoded : end]))]
        del self.ids[kept:], self.starts[kept:]
        self.ids += [number for number, _ in found]
        self.starts += [place for _, place in found]
        if not kept and self.ids[: len(theirs.prefix)] == list(theirs.prefix):  # the text begins with it
            del self.ids[: len(theirs.prefix)], self.starts[: len(theirs.prefix)]
        self.num_encoded = end
        if not is_bytes:
            self.num_settled, self.settled_bytes = len(self.ids), end


def _open_bytes(text: bytes | bytearray) -> int:
    """At its end, those that begin a character that is not there whole."""
    for count in range(1, min(4, len(text) + 1)):
        byte = text[-count]
        if byte & 0xC0 != CONTINUES:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return count if count < length else 0
    return 0
