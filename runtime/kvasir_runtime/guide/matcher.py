"""Where one answer stands in its grammar: which tokens may follow, which must, and when it is complete.

Used by the runner for each guided row. Nothing here raises for what a grammar or a token does: a matcher that cannot
continue has an error, and only its request ends.
"""

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask
from numpy.typing import NDArray

from kvasir_runtime.guide.errors import GrammarError, one_line
from kvasir_runtime.wire import SamplingConfig

if TYPE_CHECKING:  # loads the library that validates
    from kvasir_runtime.guide.checker import AnswerChecker

Mask = NDArray[np.int32]
MAX_FORCED = 128
"""Tokens that are forced at once; more follow in the next step."""


class AcceptedTokens(NamedTuple):
    """The result of a sampled token. tokens: it, unless it only ended the answer, and those that must follow it.

    ended: nothing may follow. error: why the grammar cannot go on, "" where it can.
    """

    tokens: tuple[int, ...]
    ended: bool = False
    error: str = ""


class GrammarMatcher:
    """One answer. fill() and take() are called in turns, from one thread at a time."""

    def __init__(
        self,
        matcher: LLMatcher,
        sampling: SamplingConfig,
        eos_token_ids: Sequence[int],
        answered: Sequence[int] = (),
        checker: "AnswerChecker | None" = None,
    ) -> None:
        """matcher, checker: its own copies, at the beginning, of a grammar that compiles; without a checker the grammar
        is enough. answered: tokens that it already has, after a preemption.
        """
        self.error = ""
        self._matcher = matcher
        self._checker = checker
        self._reason = ""
        self._sampling = sampling
        self._eos = frozenset(eos_token_ids)
        self._stops = frozenset(sampling.stop_token_ids)
        # EOS and stop ids that end the answer for the scheduler.
        self._ends = self._stops if sampling.ignore_eos else self._stops | self._eos
        self._num_answered = 0
        # Forced tokens come without logprobs, since their logits are computed afterwards.
        self._forces = sampling.logprobs < 0
        self._append(answered)

    def fork(self, token_ids: Sequence[int]) -> "GrammarMatcher":
        """Another answer, which goes on from here with these tokens."""
        other: GrammarMatcher = copy(self)
        other._matcher = self._matcher.deep_copy()
        other._checker = None if self._checker is None else self._checker.copy()
        if not other.error:
            other._append(token_ids)
        return other

    @property
    def is_checked(self) -> bool:
        """Not every token that the mask allows may follow."""
        return self._checker is not None and not self.error

    def admits(self, token: int) -> bool:
        """Whether a token that the mask allows may follow."""
        if self._checker is None or self.error or (token in self._eos | self._stops and self.may_end()):
            return True
        return self._checker.admits(token)

    def may_end(self) -> bool:
        """Whether the answer is complete."""
        return bool(self._matcher.is_accepting()) and (self._checker is None or self._checker.fits())

    def token_to_end(self) -> int:
        """A token that may follow, for a row in which all that were drawn may not."""
        assert self._checker is not None, "its mask is enough"
        if self._checker.is_ended:  # without an end-of-sequence, any token: the request ends with an error
            return min(self._ends or self._eos, default=0)
        return self._checker.token_to_end()

    def fill(self, mask: Mask) -> None:
        """Set the bits of the tokens that may follow, (1, ids / 32) int32, the lowest bit first.

        EOS where the answer may end; also a stop id, whatever it spells. Elsewhere a stop id is forbidden as long as
        there is any other way, and so is EOS where it shall be ignored.
        """
        if not self.error:
            fill_next_token_bitmask(self._matcher, mask, 0)
            if self._matcher.is_error():
                self._fail()
        if self.error:
            mask.fill(-1)
            return
        bits = mask.view(np.uint32)[0]
        if self.may_end():
            _put(bits, self._stops, present=True)
            unwanted = self._eos - self._ends
        else:
            unwanted = self._stops if self._checker is None else self._stops | self._eos
        if unwanted:
            all_of_them = bits.copy()
            _put(bits, unwanted, present=False)
            if not bits.any():
                bits[:] = all_of_them

    def take(self, token: int, room: int) -> AcceptedTokens:
        """A token was sampled. room: tokens that may still be appended after it."""
        if self.error:
            return AcceptedTokens((), error=self.error)
        matcher = self._matcher
        if token in self._eos | self._stops and self.may_end():
            shown = token in self._ends and self._num_answered >= self._sampling.min_tokens
            return AcceptedTokens((token,) if shown else (), ended=True)
        self._num_answered += 1
        if not matcher.consume_token(token):
            return AcceptedTokens((), error=self._fail())
        tokens = [token]
        room = min(room, MAX_FORCED) if self._forces else 0
        # One by one, each as the mask would have it, so that the answer is the same as without forcing.
        while not matcher.is_stopped() and len(tokens) <= room:
            forced = matcher.compute_ff_tokens()
            if not forced or forced[0] in self._stops:
                break
            if not matcher.consume_token(forced[0]):
                break
            tokens.append(forced[0])
        self._num_answered += len(tokens) - 1
        if matcher.is_error() or self._checked(tokens):
            return AcceptedTokens(tuple(tokens), error=self._fail())
        return AcceptedTokens(tuple(tokens), ended=matcher.is_stopped())

    def follow(self, draft: int) -> bool:
        """Advance by a token that is guessed to be sampled. False where none follows it: it is forbidden, or ends the
        answer.
        """
        if self.error or (draft in self._eos | self._stops and self.may_end()):
            return False
        return self._matcher.try_consume_tokens([draft]) == 1 and not self._matcher.is_stopped()

    def _append(self, tokens: Sequence[int]) -> None:
        """Advance by tokens that were chosen before."""
        self._num_answered += len(tokens)
        if (tokens and not self._matcher.consume_tokens(list(tokens))) or self._checked(tokens):
            self._fail()

    def _checked(self, tokens: Sequence[int]) -> str:
        """Advance the check. Why it cannot go on, "" where it can."""
        try:
            if self._checker is not None:
                for token in tokens:
                    self._checker.take(token)
        except GrammarError as error:
            self._reason = str(error)
        return self._reason

    def _fail(self) -> str:
        reason = self._reason or one_line(self._matcher.get_error())
        self.error = f"the answer cannot go on in its grammar: {reason}"
        return self.error


def _put(bits: NDArray[np.uint32], token_ids: frozenset[int], *, present: bool) -> None:
    for token in token_ids:
        word, bit = divmod(token, 32)
        if present:
            bits[word] |= np.uint32(1 << bit)
        else:
            bits[word] &= np.uint32(~(1 << bit) & 0xFFFFFFFF)
