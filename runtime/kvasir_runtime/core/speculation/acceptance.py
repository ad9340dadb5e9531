"""How often drafts of a sequence are right, by how much of its text they follow from. Pure."""

from dataclasses import dataclass, field
from typing import Final

from kvasir_runtime.core.speculation.drafters import NO_DRAFT, Draft, TokenHistory
from kvasir_runtime.core.speculation.ongoing_copy import OngoingCopy

CLASSES: Final = 5
"""Of drafts, by the bits of the number of ids that they follow from: 1 (behind a replaced token), 2 to 3, 4 to 7, 8 to
15, more.
"""
FIRST: Final = (0.6, 0.4, 0.6, 0.8, 0.9)
"""Expected of a draft of each class before any was verified."""
FIRST_WEIGHT: Final = 2.0
"""Verified drafts that weigh as much as what others of the engine have taught, in a sequence that begins."""
KEPT: Final = 0.85
"""Of what was learned, at each verification: a change is known after some six."""
KEPT_BY_ALL: Final = 0.99
RETRY_STEPS: Final = 16
"""Steps, for each sequence of a step, after which a draft that was not worth it is tried again. So one is tried in as
many steps, which costs less than 1 % where a draft adds less than a sixth to one. MOST_RETRY_STEPS: at most.
"""
MOST_RETRY_STEPS: Final = 256
RETRIED: Final = 0.7
"""Expected of it then."""
LEAST_SURVIVAL: Final = 0.02
"""Below which no draft is worth a look at its cost."""
MOST_REST: Final = 15
"""Steps without a look at a text in which nothing was found, at most."""
UNTRIED_REST: Final = 3
"""The same where what was found is not worth a try."""


class AcceptanceRates:
    """The probability that a draft is right where those before it were, by class; means that forget."""

    __slots__ = ("_accepted", "_tried")

    def __init__(self, first: "AcceptanceRates | None" = None) -> None:
        """first: what others have taught."""
        self._tried = [FIRST_WEIGHT] * CLASSES
        self._accepted = [
            FIRST_WEIGHT * (FIRST[place] if first is None else first.of(place)) for place in range(CLASSES)
        ]

    def of(self, place: int) -> float:
        """0..1."""
        return self._accepted[place] / self._tried[place]

    def verified(self, place: int, tried: float, accepted: int, keep: float) -> None:
        """tried: drafts of this class that were reached, up to the first wrong one."""
        self._tried[place] = self._tried[place] * keep + tried
        self._accepted[place] = min(self._tried[place], self._accepted[place] * keep + accepted)


@dataclass(slots=True, eq=False)
class SequenceDrafts:
    """What speculation keeps of a sequence. draft: of the last look. untried: steps since one was verified.

    rest: steps to come without a look; misses: looks in a row that found nothing.
    """

    rates: AcceptanceRates
    history: TokenHistory = field(default_factory=TokenHistory)
    copy: OngoingCopy = field(default_factory=OngoingCopy)
    draft: Draft = NO_DRAFT
    untried: int = 0
    rest: int = 0
    misses: int = 0

    def survivals(self, num_sequences: int) -> list[float]:
        """The probability of each token of the draft to be kept, falling from one to the next, as far as it matters.

        num_sequences: of the step.
        """
        rate, survival = self.rates.of(class_of(self.draft)), 1.0
        retried = self.untried >= min(MOST_RETRY_STEPS, RETRY_STEPS * num_sequences)
        found = []
        for place, share in enumerate(self.draft.shares):
            survival *= max(rate, RETRIED) if retried and not place else rate
            if survival * share < LEAST_SURVIVAL:
                break
            found.append(survival * share)
        return found

    def look(self, found: Draft, most: int) -> None:
        """What a look at the text gave, unless going on with the copy behind a replaced token is likelier to be right.

        most: tokens of that.
        """
        resumed = self.copy.resumed(self.history.ids, self.history.length, most)
        if self._likelihood(resumed) > self._likelihood(found):
            found = resumed
        self.copy.follow(found, self.history.length)
        self.draft = found
        self.misses = 0 if found.tokens else self.misses + 1
        self.rest = min(MOST_REST, (1 << self.misses) - 1) if self.misses else 0

    def tries(self, count: int) -> None:
        """So many of the draft's tokens are verified."""
        self.untried = 0 if count else self.untried + 1
        if self.draft.tokens and not count:
            self.rest = UNTRIED_REST

    def _likelihood(self, draft: Draft) -> float:
        """Of its first token."""
        return self.rates.of(class_of(draft)) * draft.shares[0] if draft.tokens else 0.0


def class_of(draft: Draft) -> int:
    """Of `CLASSES`."""
    return min(max(1, draft.matched).bit_length(), CLASSES) - 1
