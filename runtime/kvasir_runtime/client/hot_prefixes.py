"""Which beginnings of prompts are asked most, as token ids: what a new replica computes before it takes requests.

The server notes the prompts of every HTTP request that generates. A block's hash does not give its ids back, so they
are kept here, in pieces that prompts with the same beginning share, within bounded memory. Nothing of it is logged.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api.hashes import owner_of_salt
from kvasir_runtime.wire import EngineRequest, packed_ids, unpacked_ids

MOST_PIECES: Final = 8192
MOST_DEPTH: Final = 512
"""Pieces of one HTTP request: it may cost the event loop no more than a millisecond."""
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
    """A beginning of prompts: the first `kept` ids of the prefix at index `follows` of the same list (-1 for none),
    then ids. salt: of its requests. hits: how many lately."""

    ids: tuple[int, ...]
    salt: bytes
    hits: float
    follows: int = -1
    kept: int = 0


class HotPrefixes:
    """Trees of pieces of piece_tokens ids each, by the hash of all ids up to their end. Used on the event loop only."""

    def __init__(self, piece_tokens: int) -> None:
        self._bytes = piece_tokens * ID_BYTES
        self._tokens = piece_tokens
        self._owned: dict[bytes, OrderedDict[bytes, _Piece]] = {}
        self._weight = 1.0

    @property
    def num_pieces(self) -> int:
        """Of all owners."""
        return sum(map(len, self._owned.values()))

    def note(self, requests: Sequence[EngineRequest]) -> None:
        """An HTTP request was sent, as these sequences: each of its prompts counts once, whatever the choices."""
        self._weight *= FADING
        noted, left = set(), MOST_DEPTH
        for request in requests:
            prompt = request.packed_prompt or request.prompt
            if left and request.pooling is None and prompt and (request.salt, prompt) not in noted:
                noted.add((request.salt, prompt))
                left -= self._note(request, left)
        if self._weight > MOST_WEIGHT:
            self._rescale()

    def forget(self, owner: bytes = b"") -> None:
        """Keep nothing of what was asked so far. owner: only of requests with this mark (`hashes.owner_of_salt`)."""
        if owner:
            self._owned.pop(owner, None)
        else:
            self._owned.clear()

    def frozen(self) -> "FrozenPrefixes":
        """What is kept now, for another thread."""
        pieces: dict[bytes, _Piece] = {}
        for owned in self._owned.values():
            pieces.update(owned)
        return FrozenPrefixes(pieces, self._weight, self._tokens)

    def _note(self, request: EngineRequest, most: int) -> int:
        """The pieces of a prompt, of which only the first count."""
        packed = request.packed_prompt or packed_ids(request.prompt[: most * self._tokens])
        count = min(len(packed) // self._bytes, most)
        if not count:
            return 0
        owned = self._owned.setdefault(owner_of_salt(request.salt), OrderedDict())
        path, parent = [], hashlib.blake2b(request.salt, digest_size=16).digest()
        for number in range(count):
            ids = packed[number * self._bytes : (number + 1) * self._bytes]
            key = hashlib.blake2b(parent + ids, digest_size=16).digest()
            piece = owned.get(key)
            if piece is None:
                piece = owned[key] = _Piece(parent, ids, request.salt, number + 1)
            piece.hits += self._weight
            path.append(key)
            parent = key
        for key in reversed(path):  # a beginning outlives what follows it
            owned.move_to_end(key)
        self._evict()
        return count

    def _evict(self) -> None:
        """What was asked longest ago, of owners with more than an equal share."""
        excess, fair = self.num_pieces - MOST_PIECES, MOST_PIECES // len(self._owned)
        while excess > 0:
            owner, owned = max(self._owned.items(), key=lambda item: len(item[1]))
            for _ in range(min(excess, len(owned) - fair)):
                owned.popitem(last=False)
                excess -= 1
            if not owned:
                del self._owned[owner]

    def _rescale(self) -> None:
        """With new pieces, since another thread may read the old ones."""
        for owned in self._owned.values():
            for key, piece in owned.items():
                owned[key] = replace(piece, hits=piece.hits / self._weight)
        self._weight = 1.0


class FrozenPrefixes:
    """The pieces of one moment by their hashes. weight: of a request at that moment."""

    def __init__(self, pieces: Mapping[bytes, _Piece], weight: float, piece_tokens: int) -> None:
        self._pieces, self._weight, self._tokens = pieces, weight, piece_tokens

    def top(self, count: int, most_tokens: int) -> list[HotPrefix]:
        """The beginnings that save most computation, first: ends of paths, and places where most requests part.

        Ids that two of them share are there once; most_tokens bounds those of all. What does not fit is left out.
        """
        found: list[HotPrefix] = []
        places: dict[bytes, int] = {}
        left = most_tokens
        for key in self._ends()[:count]:
            path = self._path(key, places)
            if len(path) * self._tokens > left:
                continue
            left -= len(path) * self._tokens
            last, parent = self._pieces[key], self._pieces[path[0]].parent if path else key
            found.append(
                HotPrefix(
                    ids=tuple(unpacked_ids(b"".join(self._pieces[step].ids for step in path))),
                    salt=last.salt,
                    hits=round(last.hits / self._weight, 1),
                    follows=places.get(parent, -1),
                    kept=(last.depth - len(path)) * self._tokens,
                )
            )
            places |= dict.fromkeys(path, len(found) - 1)
        return found

    def _ends(self) -> list[bytes]:
        following: dict[bytes, float] = {}
        for piece in self._pieces.values():
            following[piece.parent] = max(following.get(piece.parent, 0.0), piece.hits)
        least = LEAST_HITS * self._weight
        ends = [
            (piece.hits * piece.depth, key)
            for key, piece in self._pieces.items()
            if piece.hits >= least and following.get(key, 0.0) < max(least, piece.hits / 2)
        ]
        return [key for _, key in sorted(ends, reverse=True)]

    def _path(self, key: bytes, places: Mapping[bytes, int]) -> list[bytes]:
        """Hashes of the pieces up to this one that have no place yet, in order."""
        path = []
        while key in self._pieces and key not in places:
            path.append(key)
            key = self._pieces[key].parent
        return path[::-1]
