"""Rows that have no masks behind drafts for a while, since one took too long.

Owned by `grammar_masks`. No answer depends on such a mask, yet a step waits for it, and it holds up those of others.
"""

from typing import Final

LEAST_STEPS: Final = 16
MOST_STEPS: Final = 256


class DraftRests:
    """By row the steps with drafts that are left of its rest, and how long the next one is."""

    def __init__(self) -> None:
        self._left: dict[int, int] = {}
        self._next: dict[int, int] = {}

    def begin(self, row: int) -> None:
        """A mask behind a draft of a row took too long: twice as many steps each time."""
        self._left[row] = steps = self._next.get(row, LEAST_STEPS)
        self._next[row] = min(MOST_STEPS, 2 * steps)

    def takes_step(self, row: int) -> bool:
        """Whether a row rests in a step in which it has drafts."""
        left = self._left.get(row, 0)
        self._left[row] = max(0, left - 1)
        return left > 0

    def forget(self, row: int) -> None:
        """Another sequence gets the row."""
        self._left.pop(row, None)
        self._next.pop(row, None)
