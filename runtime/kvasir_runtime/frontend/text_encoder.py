"""Long texts to token ids: part by part, no further than needed, and parts that were seen before from a cache.

The tokenizer of a model uses it in worker threads. One call of the library takes milliseconds and releases the
interpreter, so neither the event loop nor other clients wait for a text of megabytes; a text that is too long costs no
more than the part of it that could have fit.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Final

from tokenizers import Tokenizer as Encoder

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.split_points import Split, SplitPoints

PART_CHARACTERS: Final = 16_384
"""Of a part before its end is looked for: about 4,000 tokens and 5 ms."""
MAX_PART_CHARACTERS: Final = 1 << 21
"""Of one call of the library: about two seconds in which a worker thread is busy and nothing else waits."""
CACHE_BYTES: Final = 64 << 20
"""Of the ids of parts: 16 million tokens."""
ENTRY_BYTES: Final = 200
"""What an entry of the cache takes besides its ids."""
KEY_BYTES: Final = 32
"""Wide, since equal keys give equal prompts."""


class TextEncoder:
    """Ids of texts, without what the tokenizer puts around them. Used by several threads.

    Every method raises Refused for a text that has no place to split it for so long that one call would take seconds.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        part_characters: int = PART_CHARACTERS,
        max_part_characters: int = MAX_PART_CHARACTERS,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._encoder = encoder
        self._part_characters = part_characters
        self._max_part_characters = max_part_characters
        self._cache = _IdCache(cache_bytes)

    def ids(self, text: str, enough: int | None = None, *, salt: bytes = b"") -> list[int]:
        """The ids of a text; where there are more than enough, the first of them, at least so many.

        salt: up to 64 bytes; what was remembered with another one is not found, not even by how long it takes.
        """
        found: list[int] = []
        for start, end in self._parts(text):
            found += self._part_ids(text[start:end], salt)
            if enough is not None and len(found) >= enough:
                break
        return found

    def last_ids(self, text: str, enough: int) -> list[int]:
        """The last ids of a text, at least so many where there are as many."""
        found: list[list[int]] = []
        count, end = 0, len(text)
        while True:
            split = self._last_split(text, end)
            found.append(self._encode(text[0 if split is None else split.right : end]))
            count += len(found[-1])
            if split is None or count >= enough:
                return [token_id for ids in reversed(found) for token_id in ids]
            end = split.left

    def beginning(self, text: str, enough: int) -> str:
        """A beginning of the text with the same ids, at least so many where there are as many."""
        count = 0
        for start, end in self._parts(text):
            count += len(self._part_ids(text[start:end], b""))
            if count >= enough:
                return text[:end]
        return text

    @cached_property
    def _points(self) -> SplitPoints:
        return SplitPoints(self._encoder)

    def _parts(self, text: str) -> Iterator[tuple[int, int]]:
        """Starts and ends, from the beginning on, so that texts that begin alike have the same parts."""
        start = 0
        while len(text) - start > self._part_characters:
            latest = min(len(text), start + self._max_part_characters)
            split = self._points.first(text, start + self._part_characters, latest)
            if split is None:
                break
            yield start, split.left
            start = split.right
        self._check(len(text) - start)
        yield start, len(text)

    def _last_split(self, text: str, end: int) -> Split | None:
        """Where the last part of text[:end] begins; None where it is all one part."""
        size, seen = self._part_characters, end
        while size < end:
            self._check(size)
            split = self._points.first(text, end - size, seen)
            if split is not None and split.right < end:
                return split
            size, seen = 2 * size, end - size
        self._check(end)
        return None

    def _check(self, characters: int) -> None:
        if characters > self._max_part_characters:
            message = (
                f"The text has {characters} characters without a place where this tokenizer may split it, such as a "
                f"blank between words; at most {self._max_part_characters} are tokenized in one piece."
            )
            raise Refused(openai_errors.invalid(message, code="invalid_value"))

    def _part_ids(self, part: str, salt: bytes) -> Sequence[int]:
        """The ids of a part, which are remembered where it is long."""
        if len(part) < self._part_characters:
            return self._encode(part)
        key = blake2b(part.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, key=salt).digest()
        known = self._cache.find(key)
        if known is not None:
            return known
        ids = self._encode(part)
        self._cache.add(key, array("i", ids))
        return ids

    def _encode(self, part: str) -> list[int]:
        """The batch's method releases the interpreter, which the one for a single text does not."""
        return list(self._encoder.encode_batch_fast([part], add_special_tokens=False)[0].ids)


class _IdCache:
    """Ids of parts by the hashes of their texts; the least recently used go first. For several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ids: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: bytes) -> "array[int] | None":
        with self._lock:
            ids = self._ids.get(key)
            if ids is not None:
                self._ids.move_to_end(key)
            return ids

    def add(self, key: bytes, ids: "array[int]") -> None:
        with self._lock:
            if key not in self._ids:
                self._ids[key] = ids
                self._bytes += _size(ids)
            while self._bytes > self._max_bytes:
                self._bytes -= _size(self._ids.popitem(last=False)[1])


def _size(ids: "array[int]") -> int:
    return len(ids) * ids.itemsize + ENTRY_BYTES
