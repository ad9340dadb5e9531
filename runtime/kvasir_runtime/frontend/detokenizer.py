"""Turns a sequence's token ids into text as they come, never splitting a character.

Called once per token by the stream of a request. Pure: it is given the tokenizer's decode and keeps a short window of
ids, so a step costs one decode of a few ids whatever the length of the answer. Where a text is its tokens' bytes and
nothing more, a step looks up the bytes of its own ids alone.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"
KEPT = 6
WINDOW = 16
MAX_WINDOW = 64
MAX_HELD = 3
"""Replacement characters at the end that may still become one character: it has at most four bytes."""

Decode = Callable[[Sequence[int]], str]
BytesOf = Callable[[Iterable[int]], bytes]
_UTF8 = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class Decoding:
    """How ids become text. bytes_of: of ids, whose text is that of their bytes in UTF-8; None where it may be more."""

    decode: Decode
    bytes_of: BytesOf | None = None

    def detokenizer(self, before: Sequence[int] = ()) -> "Detokenizer | ByteDetokenizer":
        """Of one sequence; before: the last ids of a prompt whose text the answer continues."""
        return Detokenizer(self.decode, before) if self.bytes_of is None else ByteDetokenizer(self.bytes_of, before)


class ByteDetokenizer:
    """Text of one sequence, in increments whose concatenation is the decoded whole: a character once it has all its
    bytes, U+FFFD once bytes are certain to be none."""

    __slots__ = ("_bytes_of", "_utf8")

    def __init__(self, bytes_of: BytesOf, before: Sequence[int] = ()) -> None:
        self._bytes_of = bytes_of
        self._utf8 = _UTF8("replace")
        self.push(before[-KEPT:])

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these ids add, "" while a character is incomplete."""
        return self._utf8.decode(self._bytes_of(token_ids))

    def flush(self) -> str:
        """What was held back, as the replacement character it is; call it once, at the end."""
        return self._utf8.decode(b"", final=True)


class Detokenizer:
    """Text of one sequence, in increments whose concatenation is the decoded whole.

    A tail that decodes to U+FFFD may be a character still in the making, so it is held back until the next id or
    flush(). before: the last ids of the prompt where the answer continues its text; some decoders strip the blank of
    a first word, and with them in view no word is first. For a new message it is empty.
    """

    __slots__ = ("_decode", "_ids", "_sent")

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(before[-KEPT:])
        self._sent = decode(self._ids).rstrip(REPLACEMENT) if self._ids else ""

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these ids add, "" while a character is incomplete."""
        return "".join([self._step(token_id) for token_id in token_ids])

    def flush(self) -> str:
        """What was held back, as the replacement characters it is; call it once, at the end."""
        rest = self._decode(self._ids)[len(self._sent) :] if self._ids else ""
        self._sent += rest
        return rest

    def _step(self, token_id: int) -> str:
        ids = self._ids
        ids.append(token_id)
        text = self._decode(ids)
        lost = ""
        if not text.startswith(self._sent):
            # A byte-fallback decoder gives up a whole run of bytes when one of them is wrong, also what was a
            # character before. That is sent already and stays; the run begins again at this id.
            lost = self._held(ids[:-1])
            del ids[:-1]
            self._sent = ""
            text = self._decode(ids)
        whole = text.rstrip(REPLACEMENT) if text.endswith(REPLACEMENT) else text
        if len(whole) < len(self._sent):  # replacement characters that were sent as such
            whole = self._sent
        delta = lost + whole[len(self._sent) :]
        self._sent = whole
        if len(ids) >= WINDOW:
            delta += self._slide(text)
        return delta

    def _held(self, ids: list[int]) -> str:
        """Replacement characters that wait at the end of ids."""
        text = self._decode(ids)
        return text[len(self._sent) :] if text.startswith(self._sent) else ""

    def _slide(self, text: str) -> str:
        """Forget old ids. Returns replacement characters that can no longer become anything else."""
        pending = len(text) - len(self._sent)
        if pending and len(self._ids) < MAX_WINDOW:
            return ""  # wait for the end of the character: a cut through the one before it would look like it
        view = self._decode(self._ids[-KEPT:])
        if not view and len(self._ids) < MAX_WINDOW:
            return ""  # only ids without a text are in view: keep a word, or the next would lose its blank
        held = min(pending, MAX_HELD, len(view))
        del self._ids[:-KEPT]
        self._sent = view[: len(view) - held]
        return REPLACEMENT * (pending - held)
