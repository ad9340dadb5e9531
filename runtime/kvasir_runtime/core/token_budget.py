"""How many tokens a step may take while streams wait for it: what ends in a target time, by the cost of steps so far.

A prompt that is computed in one step with the next tokens of other requests delays those. Pure: seconds are given.
Owned by the scheduler.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, Self

from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.sequence import SequenceState
from kvasir_runtime.core.throughput import DecayingMean

BOUND_BY_COPIES: Final = 1.2
"""Of the time of its copies, up to which a step gives no measure of the cost of a token."""
MEMORY_S: Final = 2.0
"""Busy seconds after which a measurement weighs 1/e: tokens of a long prompt cost more towards its end."""


class TokenBudget:
    """Measured cost of a token in steps that are bound by arithmetic, and the budget that follows."""

    __slots__ = ("_began", "_cost", "_ended", "_least_s", "_max_tokens", "_min_tokens", "_target_s", "_within_least")

    def __init__(self, *, target_s: float, max_tokens: int, min_tokens: int, least_s: float = 0.0) -> None:
        """target_s: 0 gives max_tokens always. min_tokens: as `Limits.min_step_tokens`. least_s: of any step: what is
        computed beside the copies of weights is free, so a step with fewer tokens than that would only cost throughput.
        """
        self._target_s = max(target_s, least_s) if target_s else 0.0
        self._least_s = least_s
        self._within_least = 0
        """Most tokens of a step that took no longer than its copies."""
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._cost = DecayingMean()
        self._began: deque[float] = deque()
        self._ended = float("-inf")

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """As the settings of the scheduler say."""
        return cls(
            target_s=limits.target_step_s,
            max_tokens=limits.max_batch_tokens,
            min_tokens=limits.min_step_tokens,
            least_s=limits.min_step_s,
        )

    def begin(self, now: float) -> None:
        """A step begins, or will once those before it have ended."""
        self._began.append(now)

    def end(self, num_tokens: int, now: float) -> float:
        """The oldest of those that have begun, of so many query tokens, ended. Returns its seconds."""
        elapsed_s = now - max(self._began.popleft(), self._ended)
        self._ended = now
        if elapsed_s < self._least_s * BOUND_BY_COPIES:
            self._within_least = max(self._within_least, num_tokens)
        elif num_tokens >= self._min_tokens and elapsed_s > 0:
            self._cost.add(elapsed_s, num_tokens, 1.0 / (1.0 + elapsed_s / MEMORY_S))
        return elapsed_s

    def forget(self) -> None:
        """Those that have begun will not end."""
        self._began.clear()

    @property
    def token_s(self) -> float:
        """Measured seconds of a token in steps that are bound by arithmetic; 0 until one was measured."""
        return self._cost.value

    def tokens(self, running: Iterable[SequenceState]) -> int:
        """Query tokens of the next step. Only sequences that lack nothing but their last token's cache wait for it.

        Until a cost is measured, they wait for the smallest step that measures it.
        """
        if not self._target_s:
            return self._max_tokens
        num_streams = sum([len(one.tokens) + one.in_flight - one.computed == 1 for one in running])
        if not num_streams:
            return self._max_tokens
        affordable = int(self._target_s / self._cost.value) if self._cost.value else 2 * self._within_least
        return min(self._max_tokens, max(affordable, self._min_tokens + num_streams))
