"""Where the text of a sequence is copied from, so that the copy goes on behind a token that was replaced. Pure.

A search for the end of the text finds nothing until several tokens behind the replaced one are known. The place in the
source moves with the text, so that no search is needed.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvasir_runtime.core.speculation.drafters import NO_DRAFT, NO_IDS, Draft, elected_draft

REPLACED: Final = 1
"""As which a draft behind a replaced token counts: drafters find two ids or more, so that these have a class alone."""


class OngoingCopy:
    """Of one sequence."""

    __slots__ = ("_begins", "_source")

    def __init__(self) -> None:
        self._source: NDArray[np.int32] = NO_IDS
        self._begins = 0

    def follow(self, draft: Draft, length: int) -> None:
        """The text, of so many ids, is expected to go on as this draft. Without a draft the copy has ended."""
        self._source, self._begins = draft.source, length

    def resumed(self, text: NDArray[np.int32], length: int, most: int) -> Draft:
        """At most so many tokens from the same place on, where one of the last two ids of the text is another there.

        text: its last ids. length: of the whole. Nothing where the source ended there, by an id below 0.
        """
        gained = length - self._begins
        last = self._source[gained : gained + 2]
        if len(last) < 2 or last.min() < 0 or np.count_nonzero(last != text[-2:]) != 1:
            return NO_DRAFT
        return elected_draft(self._source, np.array([gained + 2]), REPLACED, most)
