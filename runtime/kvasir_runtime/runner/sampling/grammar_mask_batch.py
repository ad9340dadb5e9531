"""The chunks of a step that sample for rows with a grammar, and the masks of what they may sample.

A value of `grammar_masks`, which the sampler and the runner read. A chunk with drafts has an entry for each position
that it samples from, in their order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from kvasir_runtime.guide.drafted_masks import DraftedMask
from kvasir_runtime.kernels.row_sampler import LateMask
from kvasir_runtime.runner.sampling.mask_filler import MaskRow

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import GrammarMatcher


@dataclass(frozen=True, slots=True)
class GuidedChunk:
    """A chunk that samples for a row with a grammar. index: among those that sample. position: of the sampled token.

    matcher: of the sequence that holds the row in this plan, or why there is none; when the step is collected another
    sequence may hold the row. is_beam: what follows is chosen among the tokens that are reported. drafts: those before
    the position.
    """

    index: int
    row: int
    position: int
    matcher: "GrammarMatcher | str"
    is_beam: bool = False
    drafts: tuple[int, ...] = ()


@dataclass(slots=True)
class GrammarMaskBatch:
    """The guided chunks of a step, and by their numbers the masks, once these are begun; None for one without.

    dropped: indices of chunks whose samples are dropped: the token before ended their matcher or was followed by forced
    tokens, or, of those that are deferred as well, the mask was late.
    """

    guided: tuple[GuidedChunk, ...]
    rows: "list[MaskRow | None] | None" = None
    dropped: set[int] = field(default_factory=set)
    deferred: set[int] = field(default_factory=set)
    behind: dict[int, DraftedMask] = field(default_factory=dict)

    def by_row(self) -> Iterator[list[GuidedChunk]]:
        """The positions of one row after the other."""
        for _, found in groupby(self.guided, attrgetter("row")):
            yield list(found)

    @property
    def num_rows(self) -> int:
        """Rows with a grammar."""
        return sum([not chunk.drafts for chunk in self.guided])

    def is_known_behind(self, chunk: GuidedChunk) -> bool:
        """Whether a token may be taken behind the drafts of a position, all of which were."""
        mask = self.behind.get(chunk.index)
        return mask is not None and mask.is_filled

    def drop(self, matchers: "Iterable[GrammarMatcher]") -> None:
        """Drop what is sampled for these matchers."""
        for matcher in matchers:
            self.dropped |= {chunk.index for chunk in self.guided if chunk.matcher is matcher}

    def late_masks(self) -> dict[int, LateMask] | None:
        """By index of their chunk; None where more than they decides what is sampled, or they were not begun."""
        checked = any(
            chunk.is_beam or (not isinstance(chunk.matcher, str) and chunk.matcher.is_checked) for chunk in self.guided
        )
        if self.rows is None or self.dropped or checked:
            return None
        return {chunk.index: row.late for chunk, row in zip(self.guided, self.rows, strict=True) if row is not None}

    def shares_matcher(self, other: "GrammarMaskBatch") -> bool:
        """Whether both steps sample for one matcher."""
        return any(one.matcher is another.matcher for one in self.guided for another in other.guided)

    @property
    def deferred_matchers(self) -> "list[GrammarMatcher]":
        """Matchers whose mask was late."""
        return [
            chunk.matcher
            for chunk in self.guided
            if chunk.index in self.deferred and not isinstance(chunk.matcher, str)
        ]
