"""Which beginnings of prompts are asked most, as token ids: what a new replica computes before it takes requests.

The engine client notes every request that it sends. A block's hash does not give its ids back, so they are kept here,
in pieces that prompts with the same beginning share, within bounded memory. Nothing of it is logged.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from kvasir_runtime.wire import EngineRequest, packed_ids, unpacked_ids

MOST_PIECES: Final = 8192
MOST_DEPTH: Final = 512
"""Pieces of one prompt: a request may cost the event loop no more than half a millisecond."""
LEAST_HITS: Final = 1.5
"""Two requests, of which neither is long ago."""
FADING: Final = 2 ** (1 / 1000)
"""A request counts half as much a thousand requests later."""
MOST_WEIGHT: Final = 1e100
ID_BYTES: Final = 4


@dataclass(slots=True)
class _Piece:
    """Ids behind those of the parent. hits: requests, newer ones with more weight."""

    parent: bytes
    ids: bytes
    salt: bytes
    depth: int
    hits: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPrefix:
    """A beginning of prompts. salt: of its requests. hits: how many lately."""

    ids: tuple[int, ...]
    salt: bytes
    hits: float


class HotPrefixes:
    """A tree of pieces of piece_tokens ids each, by the hash of all ids up to their end."""

    def __init__(self, piece_tokens: int) -> None:
        self._bytes = piece_tokens * ID_BYTES
        self._tokens = piece_tokens
        self._pieces: OrderedDict[bytes, _Piece] = OrderedDict()
        self._weight = 1.0

    def note(self, request: EngineRequest) -> None:
        """A request was sent."""
        if request.pooling is not None:
            return
        packed = request.packed_prompt or packed_ids(request.prompt[: MOST_DEPTH * self._tokens])
        count = min(len(packed) // self._bytes, MOST_DEPTH)
        self._weight *= FADING
        path, parent = [], hashlib.blake2b(request.salt, digest_size=16).digest()
        for number in range(count):
            ids = packed[number * self._bytes : (number + 1) * self._bytes]
            key = hashlib.blake2b(parent + ids, digest_size=16).digest()
            piece = self._pieces.get(key)
            if piece is None:
                piece = self._pieces[key] = _Piece(parent, ids, request.salt, number + 1)
            piece.hits += self._weight
            path.append(key)
            parent = key
        for key in reversed(path):  # a beginning outlives what follows it
            self._pieces.move_to_end(key)
        while len(self._pieces) > MOST_PIECES:
            self._pieces.popitem(last=False)
        if self._weight > MOST_WEIGHT:
            self._rescale()

    def top(self, count: int) -> list[HotPrefix]:
        """The beginnings that save most computation, first: ends of paths, and places where most requests part."""
        following: dict[bytes, float] = {}
        for piece in self._pieces.values():
            following[piece.parent] = max(following.get(piece.parent, 0.0), piece.hits)
        least = LEAST_HITS * self._weight
        ends = [
            (piece.hits * piece.depth, key)
            for key, piece in self._pieces.items()
            if piece.hits >= least and following.get(key, 0.0) < max(least, piece.hits / 2)
        ]
        return [self._prefix(key) for _, key in sorted(ends, reverse=True)[:count]]

    def forget(self) -> None:
        """Keep nothing of what was asked so far."""
        self._pieces.clear()

    def _prefix(self, key: bytes) -> HotPrefix:
        last = piece = self._pieces[key]
        parts = [piece.ids]
        while piece.depth > 1:
            piece = self._pieces[piece.parent]
            parts.append(piece.ids)
        ids = tuple(unpacked_ids(b"".join(reversed(parts))))
        return HotPrefix(ids=ids, salt=last.salt, hits=round(last.hits / self._weight, 1))

    def _rescale(self) -> None:
        for piece in self._pieces.values():
            piece.hits /= self._weight
        self._weight = 1.0
