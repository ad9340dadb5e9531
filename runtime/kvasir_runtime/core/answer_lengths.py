"""How long answers become, learned from those that ended. Used by the admission of requests. Pure."""

from bisect import bisect_right, insort
from collections import deque
from typing import Final

KEPT: Final = 256
"""Lengths of the last answers."""
LEAST: Final = 16
"""Of them, before anything is concluded."""
QUANTILE: Final = 0.3
"""Of the answers that got as far as one, this share is shorter than it is expected to become. The peak formula counts
equal requests as if all ended late together, so the median would leave a twentieth of the cache unused."""
BEYOND: Final = 0.1
"""Of its length an answer is expected to grow that is longer than any before, after Gong et al. 2025 (LightLLM)."""


class AnswerLengths:
    """The lengths of the last KEPT answers, in tokens."""

    __slots__ = ("_last", "_sorted")

    def __init__(self) -> None:
        self._last: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, num_tokens: int) -> None:
        """An answer ended."""
        self._last.append(num_tokens)
        insort(self._sorted, num_tokens)
        if len(self._last) > KEPT:
            del self._sorted[bisect_right(self._sorted, self._last.popleft()) - 1]

    @property
    def is_known(self) -> bool:
        """Whether enough answers have ended."""
        return len(self._last) >= LEAST

    @property
    def most_expected(self) -> int:
        """No answer is expected to grow by more tokens."""
        return self._sorted[-1] + 1 if self._sorted else 0

    def expected(self, num_tokens: int) -> int:
        """Tokens that an answer of so many will still get: of those that were longer, the quantile."""
        first = bisect_right(self._sorted, num_tokens)
        longer = len(self._sorted) - first
        if not longer:
            return min(1 + int(BEYOND * num_tokens), self.most_expected)
        return self._sorted[first + int(QUANTILE * (longer - 1))] - num_tokens
