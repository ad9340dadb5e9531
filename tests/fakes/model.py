"""A model whose next token is read from a table, at a place that depends on every token before it."""

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from kvasir_runtime.wire import Logprobs

EOS = 0


class Forced(NamedTuple):
    """What a grammar makes of an answer: tokens that must follow, and whether it is complete or at a loss then."""

    tokens: tuple[int, ...]
    ended: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """table: tokens to answer with. Any change in the context, even far back, moves to another place in it.

    loses: a grammar may be at a loss, which ends its request in an error.
    """

    table: tuple[int, ...] = tuple(range(61))
    loses: bool = True

    def next_token(self, context: Sequence[int], seed: int = 0, forbidden: Collection[int] = ()) -> int:
        """What follows the context; the first token of the table from its place on that is not forbidden."""
        place = crc32(array("I", context).tobytes(), seed)
        for step in range(len(self.table)):
            token = self.table[(place + step) % len(self.table)]
            if token not in forbidden:
                return token
        raise ValueError("every token is forbidden")

    def logprobs(self, context: Sequence[int]) -> list[tuple[float, int]]:
        """What the model thinks of each token of the table after the context: logprob and token, likeliest first.

        Both hang on every token of the context; no two tokens are equally likely.
        """
        place = crc32(array("I", context).tobytes(), 1)
        scores = {token: crc32(token.to_bytes(4, "little"), place) / (1 << 30) for token in self.table}
        return sorted(((-score - 0.1, token) for token, score in scores.items()), reverse=True)

    def likeliest(self, context: Sequence[int], count: int) -> Logprobs:
        """The first of them as a runner reports them."""
        top = self.logprobs(context)[:count]
        return Logprobs(top[0][0], 1, tuple(token for _, token in top), tuple(logprob for logprob, _ in top))

    def forced(self, context: Sequence[int]) -> Forced:
        """As a grammar would have it after the context: none to three tokens that are no stop ids, rarely an end."""
        place = crc32(array("I", context).tobytes(), 7)
        tokens = tuple(6 + (place + step) % 17 for step in range(place % 4))
        return Forced(
            tokens, ended=place % 19 == 0, error="told to be at a loss" if place % 41 == 0 and self.loses else ""
        )
