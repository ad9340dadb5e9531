"""Checks an answer against schemas while it is written, where its grammar allows more than they do.

It always knows one way to end the answer so that every JSON text in it fits its schema: nothing may be written for
which no such way is found, so no answer comes to a dead end. The last way is tried first; then one is searched by
writing to the end under the grammar, first what is shortest, then at random, and validating what the grammar captured.
Uses jsonschema-rs, which validates in microseconds.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jsonschema_rs import Draft202012Validator, RegexOptions
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from numpy.typing import NDArray

from kvasir_runtime.guide.errors import GrammarError

FIRST_SYMBOLS: Final = 60_000
"""To write in search of a way at the beginning, where finding none refuses the schema: about a second.

Work and not time is bounded, so that an answer is the same however busy the machine is."""
STEP_SYMBOLS: Final = 2000
"""The same for one token, where finding none means that another token is drawn."""
MAX_ENDING: Final = 1024
SYMBOLS_PER_TRY: Final = 16
NUM_BYTES: Final = 256
PREFERRED: Final = ('"', "}", "]", "0123456789", "n", "tf", "{", "[", ",")
"""What closes, a text first, then short values; other characters come behind, white space last."""
STEP: Final = 640
CLOSES_OBJECT: Final = range(STEP, 2 * STEP)
WHITE: Final = 1000 * 64


@dataclass(frozen=True, slots=True, eq=False)
class Alphabet:
    """What the grammar of a check is written with: bytes, or the model's tokens where special ones are in it.

    size: of the matcher's vocabulary, eos: its end of a text. ranks: (size,) which symbols are preferred to come to an
    end, the lowest first. spelled: the symbols of a text. symbols: of a token. tokens: the model's tokens for some
    symbols. text: of a token.
    """

    size: int
    eos: int
    ranks: NDArray[np.int64]
    spelled: Callable[[bytes], Sequence[int]]
    symbols: Callable[[int], Sequence[int]]
    tokens: Callable[[Sequence[int]], Sequence[int]]
    text: Callable[[int], bytes]


def ranks(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """(len(texts),) their order of preference, by the first character and then by length."""
    by_byte = [300 + byte for byte in range(NUM_BYTES)]
    for rank, characters in enumerate(PREFERRED):
        for character in characters:
            by_byte[ord(character)] = rank * STEP // 64
    for character in "\\ \t\r\n":
        by_byte[ord(character)] = 1000
    return np.array([(by_byte[text[0]] if text else 2000) * 64 + min(len(text), 63) for text in texts], dtype=np.int64)


class AnswerChecker:
    """One answer. admits() and take() are called in turns."""

    __slots__ = ("_after", "_ahead", "_alphabet", "_end", "_lead", "_mask", "_matcher", "_validators")

    def __init__(self, matcher: LLMatcher, schemas: Mapping[str, Any], alphabet: Alphabet, *, after: str = "") -> None:
        """matcher: at the beginning of the grammar, which captures texts under the names of the schemas. after: the
        text behind which the grammar begins.

        Raises GrammarError where no answer is found.
        """
        self._matcher, self._alphabet = matcher, alphabet
        self._validators = {name: _validator(schema) for name, schema in schemas.items()}
        self._after, self._lead = after.encode(), b""
        self._mask = allocate_token_bitmask(1, alphabet.size)
        self._ahead: tuple[tuple[int, ...], LLMatcher, tuple[int, ...]] | None = None
        self._end: tuple[int, ...] = ()
        end = self._ending(matcher, FIRST_SYMBOLS)
        if end is None:
            raise GrammarError("it is unsatisfiable, or nothing that fits it was found")
        self._end = end

    def copy(self) -> "AnswerChecker":
        """Another answer from here on."""
        other: AnswerChecker = object.__new__(AnswerChecker)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._matcher = self._matcher.deep_copy()
        other._ahead = None  # its matcher advances with the one answer that takes it
        return other

    def fits(self) -> bool:
        """Whether the answer may end here, as its grammar says that it may."""
        return not self._after and self._valid(self._matcher)

    @property
    def is_ended(self) -> bool:
        """Whether the way to end that is known is to write nothing more."""
        return not self._end

    def admits(self, token: int) -> bool:
        """Whether the answer can be ended after this token, which the grammar allows."""
        own = self._own(token)
        if own == self._end[: len(own)]:
            return True
        ahead = self._matcher.deep_copy()
        if not ahead.consume_tokens(list(own)):
            return False
        end = self._ending(ahead, STEP_SYMBOLS)
        if end is not None:
            self._ahead = own, ahead, end
        return end is not None

    def take(self, token: int) -> None:
        """A token was written. Raises GrammarError where no way to end is found, as after one that was not admitted."""
        own = self._own(token)
        if self._after:
            lead = self._lead + self._alphabet.text(token)
            self._after, self._lead = (b"" if self._after in lead else self._after), lead[-len(self._after) :]
        if self._ahead is not None and self._ahead[0] == own:
            _, self._matcher, self._end = self._ahead
        elif own:
            self._matcher.consume_tokens(list(own))
            known = own == self._end[: len(own)]
            end = self._end[len(own) :] if known else self._ending(self._matcher, FIRST_SYMBOLS)
            if end is None:
                raise GrammarError("no way was found to end the answer so that it fits its schema")
            self._end = end
        self._ahead = None

    def token_to_end(self) -> int:
        """The next token of the way to end that is known, which is not ended yet."""
        return self._alphabet.tokens(self._end)[0]

    def _own(self, token: int) -> tuple[int, ...]:
        """The symbols of a token that belong to the grammar's text."""
        if not self._after:
            return tuple(self._alphabet.symbols(token))
        text = self._lead + self._alphabet.text(token)
        return tuple(self._alphabet.spelled(text.partition(self._after)[2]))

    def _ending(self, matcher: LLMatcher, symbols: int) -> tuple[int, ...] | None:
        for known in (self._end, self._end[1:]):
            ahead = matcher.deep_copy()
            if known and ahead.try_consume_tokens(list(known)) == len(known) and self._completes(ahead):
                return known
        number = 0
        while symbols > 0:
            ahead = matcher.deep_copy()
            end = self._written(ahead, random.Random(number) if number else None)
            if self._completes(ahead):
                return tuple(end)
            if not end:
                return None
            symbols -= len(end) + SYMBOLS_PER_TRY
            number += 1
        return None

    def _completes(self, matcher: LLMatcher) -> bool:
        return (matcher.is_stopped() or matcher.is_accepting()) and self._valid(matcher)

    def _written(self, matcher: LLMatcher, chance: random.Random | None) -> list[int]:
        """As far as MAX_ENDING: the preferred symbols, and others now and then where chance is given."""
        written: list[int] = []
        while not matcher.is_stopped() and len(written) < MAX_ENDING:
            if matcher.is_accepting() and (chance is None or chance.random() < 0.5):
                break
            symbols = matcher.compute_ff_tokens() or self._choice(matcher, chance)
            if not symbols or not matcher.consume_tokens(symbols):
                break
            written += symbols
        return written

    def _choice(self, matcher: LLMatcher, chance: random.Random | None) -> list[int]:
        fill_next_token_bitmask(matcher, self._mask, 0)
        if matcher.is_error():
            return []
        size = self._alphabet.size
        allowed = np.unpackbits(self._mask.view(np.uint8)[0], bitorder="little")[:size].nonzero()[0]
        if not allowed.size:
            return []
        if chance is not None and chance.random() < 0.5:
            return [int(allowed[int(chance.random() * allowed.size)])]
        order = self._alphabet.ranks[allowed]
        named = order < WHITE
        # Where only a name or the end of the object may come, a quotation mark would open a name: rather the end.
        if named.any() and order[named].max() < CLOSES_OBJECT.stop:
            order = np.where(order < CLOSES_OBJECT.start, order + CLOSES_OBJECT.stop, order)
        return [int(allowed[order.argmin()])]

    def _valid(self, matcher: LLMatcher) -> bool:
        """Whether what was captured fits. matcher: where the text may end; the end completes a number, for one."""
        if not matcher.is_stopped():
            matcher = matcher.deep_copy()
            matcher.consume_token(self._alphabet.eos)
        try:
            return all(
                self._validators[name].is_valid(json.loads(text))
                for name, text in matcher.get_captures()
                if name in self._validators
            )
        except (ValueError, RecursionError):
            return False


def _validator(schema: Any) -> Draft202012Validator:
    try:
        return Draft202012Validator(schema, validate_formats=False, retriever=_nothing, pattern_options=RegexOptions())
    except Exception as error:  # the library raises several kinds
        raise GrammarError(f"its answers cannot be validated: {str(error)[:200]}") from error


def _nothing(address: str) -> None:
    raise GrammarError(f"its reference {address[:200]!r} leads out of the schema")
