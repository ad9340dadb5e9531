"""What the engine pays to learn what it does not know: steps with drafts that would not pay by what it knows. Pure.

What a draft of a model would be worth, or what so many drafts cost by now, is only known where it is tried. Trials are
paid from a small share of the seconds of steps, by what each took in the end, so that they cost no more than that share
however dear one is: a dear one comes rarely.
"""

from typing import Final

SHARE: Final = 0.01
"""Of the seconds of steps that trials may take. It is what an engine whose drafts never pay can be slower by."""
MOST_SAVED: Final = 1024
"""Steps whose share is kept for later, by the seconds of the last ones."""


class TrialBudget:
    """One for an engine. Seconds."""

    __slots__ = ("_most_s", "_owed", "_pace_s", "saved_s")

    def __init__(self) -> None:
        self.saved_s = 0.0
        """Below 0 where a trial took more than was saved for it."""
        self._most_s = 0.0
        self._pace_s: float | None = None
        """Of each token, had the step of the trial been another; None where the step is none."""
        self._owed = False

    @property
    def is_spent(self) -> bool:
        """Whether no trial may begin, however little it takes."""
        return self.saved_s <= 0 and not self._owed

    def allows(self, lost_s: float) -> bool:
        """Whether a trial may begin that takes so many seconds for nothing, as far as is known: where that is more than
        is ever saved, all of it will do. One whose drafts could not be made yet goes on.
        """
        return self._owed or self.saved_s >= min(lost_s, self._most_s)

    def begins(self, pace_s: float) -> None:
        """The next step with drafts is a trial. pace_s: seconds of a token without it."""
        self._pace_s = pace_s

    def ended(self, elapsed_s: float, num_tokens: int, *, tried: bool) -> None:
        """A step of decoding ended. tried: it had drafts, and all were made."""
        self._most_s = SHARE * MOST_SAVED * elapsed_s
        self.saved_s = min(self.saved_s + SHARE * elapsed_s, self._most_s)
        if self._pace_s is not None:
            self.saved_s -= elapsed_s - num_tokens * self._pace_s
            self._pace_s, self._owed = None, not tried
