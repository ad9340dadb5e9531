"""How many tokens a step may take: what there is memory for, and while streams wait for it what ends in a target time.

A prompt that is computed in one step with the next tokens of other requests delays those; one that takes many steps
delays those that arrive, too. A step that found no memory halves those that follow it; after GROWS_AFTER that found it
they are doubled again, and after twice as many where that failed. Pure: seconds are given. Owned by the scheduler.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Self

from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.prefill_shares import LongPrompts
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.throughput import DecayingLine, DecayingMean

BOUND_BY_COPIES: Final = 1.2
"""Of the time of its copies, up to which a step gives no measure of the cost of a token."""
MEMORY_S: Final = 2.0
"""Busy seconds after which a measurement weighs 1/e: tokens of a long prompt cost more towards its end."""
LONG_STEPS: Final = 8
"""Full steps beyond which a prompt is long: in each of them what arrives would wait."""
NEWCOMER_STEP_S: Final = 0.006
"""What a short prompt that arrives should wait for a step with long ones; twice what such a step costs without a token
of theirs where that is more, so that they lose at most half of their speed.
"""
NEWCOMERS_S: Final = 10.0
"""Seconds after a short prompt arrived in which more of them are expected."""
LEAST_LONG_TOKENS: Final = 8
"""Of a step, for long prompts together: with fewer they would hardly go on where a step is mostly overhead."""
LONG_MEMORY_S: Final = 0.1
"""Busy seconds after which what steps with long prompts cost weighs 1/e: it grows with every token."""
LONG_LATE: Final = 1.5
"""Of what a step with long prompts was expected to take, what it counts for at most: where another process ran, one
step would turn the line, and by that hundreds of tokens cost as much as ten.
"""
LONG_GROWTH: Final = 1.5
"""Of the mean of recent steps, most tokens of long prompts in the next one: what they cost there was not measured."""
GROWS_AFTER: Final = 128
"""Steps in a row that found memory, before larger ones are tried. One that fails costs all that its requests have
computed, so each try that failed doubles the wait: at last it is longer than any prompt takes.
"""
MOST_WAIT: Final = GROWS_AFTER << 10
"""Of these steps; after so many without a failure, failed tries are forgotten."""


class TokenBudget:
    """Measured cost of a token in steps that are bound by arithmetic, and the budget that follows."""

    __slots__ = (
        *("_began", "_cost", "_ended", "_fits", "_least_s", "_long_above", "_long_line", "_max_tokens", "_min_tokens"),
        *("_fitted", "_grows_after", "_is_smaller", "_newcomers_until", "_since_shrunk", "_target_s", "_within_least"),
    )

    def __init__(self, *, target_s: float, max_tokens: int, min_tokens: int, least_s: float = 0.0) -> None:
        """target_s: 0 gives max_tokens always. min_tokens: as `Limits.min_step_tokens`. least_s: of any step: what is
        computed beside the copies of weights is free, so a step with fewer tokens than that would only cost throughput.
        """
        self._target_s = max(target_s, least_s) if target_s else 0.0
        self._least_s = least_s
        self._within_least = 0
        """Most tokens of a step that took no longer than its copies."""
        self._max_tokens = self._fits = max_tokens
        self._fitted = 0
        """The same before larger steps were tried; 0 where none were since a step found no memory."""
        self._grows_after, self._since_shrunk = GROWS_AFTER, 0
        """Steps that find memory before larger ones are tried, and those that did."""
        self._min_tokens = min_tokens
        self._cost = DecayingMean()
        self._long_above = LONG_STEPS * max_tokens
        self._long_line = DecayingLine()
        """Seconds of steps by their tokens of long prompts."""
        self._is_smaller = True
        """The next step with long prompts has fewer of their tokens."""
        self._newcomers_until = float("-inf")
        self._began: deque[tuple[float, int]] = deque()
        self._ended = float("-inf")

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """By the limits of the scheduler."""
        return cls(
            target_s=limits.target_step_s,
            max_tokens=limits.max_batch_tokens,
            min_tokens=limits.min_step_tokens,
            least_s=limits.min_step_s,
        )

    def arrived(self, num_tokens: int, now: float) -> None:
        """A request came, with so many tokens to be computed, while others are served."""
        if num_tokens <= self._max_tokens:
            self._newcomers_until = now + NEWCOMERS_S

    def begin(self, now: float, long_tokens: int = 0) -> None:
        """A step begins, or will once those before it have ended. long_tokens: of long prompts, that it computes."""
        self._began.append((now, long_tokens))
        self._is_smaller ^= long_tokens > 0

    def end(self, num_tokens: int, now: float) -> float:
        """The oldest of those that have begun, of so many query tokens, ended. Returns its seconds."""
        began, long_tokens = self._began.popleft()
        elapsed_s = now - max(began, self._ended)
        self._ended = now
        self._since_shrunk += 1
        if self._fits < self._max_tokens and self._since_shrunk % self._grows_after == 0:
            self._fitted, self._fits = self._fits, min(self._max_tokens, 2 * self._fits)
        if self._since_shrunk == MOST_WAIT:
            self._fitted, self._grows_after = 0, GROWS_AFTER
        if long_tokens and elapsed_s > 0:
            expected_s = self._long_line.at(long_tokens) or elapsed_s
            likely_s = min(elapsed_s, LONG_LATE * expected_s)
            self._long_line.add(long_tokens, likely_s, 1.0 / (1.0 + likely_s / LONG_MEMORY_S))
        if elapsed_s < self._least_s * BOUND_BY_COPIES:
            self._within_least = max(self._within_least, num_tokens)
        elif num_tokens >= self._min_tokens and elapsed_s > 0:
            self._cost.add(elapsed_s, num_tokens, 1.0 / (1.0 + elapsed_s / MEMORY_S))
        return elapsed_s

    def forget(self) -> None:
        """Those that have begun will not end."""
        self._began.clear()

    def shrink(self, num_tokens: int) -> None:
        """A step of so many query tokens found no memory: those that follow have half as many at most, or what fitted
        before larger ones were tried.
        """
        if self._fitted:
            self._grows_after = min(MOST_WAIT, 2 * self._grows_after)
        fitted = self._fitted if self._fitted < num_tokens else 0
        self._fits, self._fitted, self._since_shrunk = max(1, num_tokens // 2, fitted), 0, 0

    @property
    def token_s(self) -> float:
        """Measured seconds of a token in steps that are bound by arithmetic; 0 until one was measured."""
        return self._cost.value

    def tokens(self, running: Iterable[SequenceState]) -> int:
        """Query tokens of the next step. Only sequences that lack nothing but their last token's cache wait for it.

        Until a cost is measured, they wait for the smallest step that measures it.
        """
        if not self._target_s:
            return self._fits
        num_streams = sum([len(one.tokens) + one.in_flight - one.computed == 1 for one in running])
        if not num_streams:
            return self._fits
        affordable = int(self._target_s / self._cost.value) if self._cost.value else 2 * self._within_least
        return min(self._fits, max(affordable, self._min_tokens + num_streams))

    def long_prompts(self, running: Iterable[SequenceState], now: float) -> LongPrompts:
        """How much of the next step is for prompts that take many.

        They are limited while short prompts arrive, so that those wait for a short step only. What a step costs without
        them and what a token of theirs adds are told apart by steps of two sizes in turns.
        """
        line = self._long_line
        if not self._target_s or now >= self._newcomers_until or not line.x:
            return LongPrompts(self._long_above)
        token_s, step_s = line.slope, line.at(0)
        if not token_s:  # all were of one size
            token_s, step_s = line.y / line.x, 0.0
        step_s = max(step_s, self._least_s)
        affordable = min((max(NEWCOMER_STEP_S, 2 * step_s) - step_s) / token_s, LONG_GROWTH * line.x / line.weight)
        together = max(LEAST_LONG_TOKENS, int(affordable))
        if self._is_smaller:
            together = together * 2 // 3
        lacks = [len(one.tokens) > self._long_above and len(one.tokens) - one.computed > 1 for one in running]
        return LongPrompts(self._long_above, max(1, together // max(1, sum(lacks))))
