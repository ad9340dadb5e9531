"""How much full steps compute before the prompt of a request is computed, by the order in which they share prompts.

Called by `deadline_admission`. It follows `admission` and `prefill_shares` in large: half of each step goes to the
first prompt, the other half to the shortest of those that have rows or are near enough to the front of the queue, and
what neither takes to the first. Pure arithmetic: it knows no requests, and tokens stand for time.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final, NamedTuple

KEPT: Final = 128
"""Sizes of the last prompts."""
LEAST_SPEED: Final = 0.01
"""Of a prompt in the half for short ones, below which it does not go on there: shorter ones fill that half."""


class TokensUntil(NamedTuple):
    """tokens: all that are computed. later: of them, those of prompts that arrive later and pass."""

    tokens: int
    later: int


class PromptSizes:
    """Of the last KEPT prompts that were computed, in tokens."""

    __slots__ = ("_last", "_sorted", "_sums")

    def __init__(self) -> None:
        self._last: deque[int] = deque()
        self._sorted: list[int] = []
        self._sums = [0]

    def add(self, num_tokens: int) -> None:
        """A prompt was computed."""
        self._last.append(num_tokens)
        insort(self._sorted, num_tokens)
        if len(self._last) > KEPT:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]
        self._sums = [0, *accumulate(self._sorted)]

    def shorter_share(self, num_tokens: int) -> float:
        """Of the tokens of all, those of shorter prompts: 0..1, 0 before there was any."""
        return self._sums[bisect_left(self._sorted, num_tokens)] / (self._sums[-1] or 1)


def tokens_until(
    running: Sequence[int], waiting: Sequence[int], own: int, *, lookahead: int, shorter_share: Callable[[int], float]
) -> TokensUntil:
    """Prompt tokens that full steps compute until a prompt of own tokens is computed that comes behind all others.

    running: what is left of prompts with rows, at least 1 each, the first by order first. waiting: the others, in
    order. lookahead: so many that wait are passed by those behind them. shorter_share: of prompts that arrive, tokens
    of those shorter than so many; they pass once the prompt itself is so near that others behind it are, too.
    """
    left: list[float] = [*running, *waiting, max(1, own)]
    last, first, seen, total, later = len(left) - 1, 0, 0, 0.0, 0.0
    end = len(running) + lookahead
    near: list[tuple[float, int]] = []
    while True:
        while seen <= min(last, end - 1):
            heappush(near, (left[seen], seen))
            seen += 1
        while not left[first]:
            first += 1
        while near and near[0][1] <= first:
            heappop(near)
        is_passed = end > last + 1
        shortest, passing = near[0] if near else (left[first], first)
        if shortest >= left[first]:
            share = min(0.5, shorter_share(int(left[first]))) if is_passed else 0.0
            total += left[first] / (1.0 - share)
            later += left[first] / (1.0 - share) - left[first]
            done = first
        else:
            heappop(near)
            speed = max(LEAST_SPEED, 1.0 - 2.0 * shorter_share(int(shortest))) if is_passed else 1.0
            if shortest <= speed * left[first]:
                done, half = passing, shortest / speed
            else:
                done, half = first, left[first]
                left[passing] -= speed * half
                heappush(near, (left[passing], passing))
            left[first] -= half
            total += 2.0 * half
            later += (1.0 - speed) * half
        left[done] = 0
        if done == last:
            return TokensUntil(round(total), round(later))
        end += done >= len(running)
