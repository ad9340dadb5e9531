"""Masks behind drafts: what may follow where an answer has gone on as it is guessed to.

Used by the runner beside the masks behind known tokens. An answer's own matcher stays where it is: a copy goes along
the drafts, so that wrong ones need not be taken back and cost the answer none of its limits.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numpy.typing import NDArray

if TYPE_CHECKING:  # loads the grammar library
    import numpy as np

    from kvasir_runtime.guide.matcher import GrammarMatcher


class DraftedMask:
    """The mask behind one draft. fill() is called once, after those of the drafts before it, from any thread.

    is_filled: whether it was, and the answer may go on behind the draft. Only then may a token be taken there.
    """

    __slots__ = ("_ahead", "_before", "_draft", "is_filled")

    def __init__(self, ahead: "GrammarMatcher", draft: int, before: "DraftedMask | None") -> None:
        """ahead: behind the drafts before this one by the time of fill(); before: the mask of the last of these."""
        self._ahead, self._draft, self._before = ahead, draft, before
        self.is_filled = False

    def fill(self, mask: "NDArray[np.int32]") -> None:
        """As `GrammarMatcher.fill`. The mask stays as it is where the answer does not go on behind the draft."""
        goes_on = self._before is None or self._before.is_filled
        if goes_on and self._ahead.follow(self._draft):
            self._ahead.fill(mask)
            self.is_filled = not self._ahead.error


def drafted_masks(matcher: "GrammarMatcher", drafts: Sequence[int]) -> list[DraftedMask]:
    """One for each draft behind what a matcher has accepted. No other thread uses the matcher meanwhile."""
    ahead, masks = matcher.fork(()), list[DraftedMask]()
    for draft in drafts:
        masks.append(DraftedMask(ahead, draft, masks[-1] if masks else None))
    return masks
