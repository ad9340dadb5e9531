"""A model whose next token is read from a table, at a place that depends on every token before it."""

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from zlib import crc32

EOS = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """table: tokens to answer with. Any change in the context, even far back, moves to another place in it."""

    table: tuple[int, ...] = tuple(range(61))

    def next_token(self, context: Sequence[int], seed: int = 0, forbidden: Collection[int] = ()) -> int:
        """What follows the context; the first token of the table from its place on that is not forbidden."""
        place = crc32(array("I", context).tobytes(), seed)
        for step in range(len(self.table)):
            token = self.table[(place + step) % len(self.table)]
            if token not in forbidden:
                return token
        raise ValueError("every token is forbidden")
