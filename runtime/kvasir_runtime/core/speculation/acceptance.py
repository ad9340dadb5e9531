"""How often drafts of a sequence are right, by how much of its text they follow from. Pure.

A draft from a text that was not verified is compared with the tokens that came, so that what is given up is known to be
worth it again without a try. A model's draft is not there to be compared: it is tried again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kvasir_runtime.core.speculation.drafters import NO_DRAFT, Draft, TokenHistory
from kvasir_runtime.core.speculation.ongoing_copy import OngoingCopy

CLASSES: Final = 6
"""Of drafts, by the bits of the number of ids that they follow from: none (a model's), 1 (behind a replaced token), 2
to 3, 4 to 7, 8 to 15, more.
"""
FIRST: Final = (0.6, 0.6, 0.4, 0.6, 0.8, 0.9)
"""Expected of a draft of each class before any was verified."""
FIRST_WEIGHT: Final = 2.0
"""Verified drafts that weigh as much as what others of the engine have taught, in a sequence that begins."""
KEPT: Final = 0.85
"""Of what was learned, at each verification: a change is known after some six."""
KEPT_BY_ALL: Final = 0.99
READ_WITH_EASE: Final = 32
"""Tokens that a model reads beside others before it drafts. DOUBTED: how likely its drafts count as they are where it
has more to read, so that none is begun for a little gain.
"""
DOUBTED: Final = 0.85
LEAST_SURVIVAL: Final = 0.02
"""Below which no draft is worth a look at its cost."""
MOST_REST: Final = 15
"""Steps without a look at a text in which nothing was found, at most; behind the first look 0, then 1 and 3."""
UNTRIED_REST: Final = 3
"""The same where what was found is not worth verifying."""


class AcceptanceRates:
    """The probability that a draft is right where those before it were, by class; means that forget."""

    __slots__ = ("_accepted", "_first", "_first_weight", "_tried")

    def __init__(self, first: "AcceptanceRates | None" = None) -> None:
        """first: what others teach, as of when it is asked."""
        self._first = first
        self._first_weight, self._tried, self._accepted = [FIRST_WEIGHT] * CLASSES, [0.0] * CLASSES, [0.0] * CLASSES

    def of(self, place: int) -> float:
        """0..1."""
        weight, tried = self._first_weight[place], self._tried[place]
        first = FIRST[place] if self._first is None else self._first.of(place)
        return (self._accepted[place] + weight * first) / (tried + weight)

    def verified(self, place: int, tried: float, accepted: int, keep: float) -> None:
        """tried: drafts of this class that were reached, up to the first wrong one."""
        self._first_weight[place] *= keep
        self._tried[place] = self._tried[place] * keep + tried
        self._accepted[place] = min(self._tried[place], self._accepted[place] * keep + accepted)


@dataclass(slots=True, eq=False)
class SequenceDrafts:
    """What speculation keeps of a sequence. draft: of the last look. guess: what the text gave then, unless it was
    verified. untried: steps since a draft was. num_read: tokens up to the last draft of a model, which it has read.
    behind: of the steps that were to have such drafts the last in a row for which it had too much to read.

    rest: steps to come without a look; misses: looks in a row of which nothing from the text was verified.
    """

    rates: AcceptanceRates
    history: TokenHistory = field(default_factory=TokenHistory)
    copy: OngoingCopy = field(default_factory=OngoingCopy)
    draft: Draft = NO_DRAFT
    guess: Draft = NO_DRAFT
    untried: int = 0
    num_read: int = 0
    behind: int = 0
    rest: int = 0
    misses: int = 0

    def survivals(self, num_unread: int = 0) -> list[float]:
        """The probability of each token of the draft to be kept, falling from one to the next, as far as it matters.

        num_unread: tokens that the one that drafts has to read before.
        """
        rate, survival = self.rates.of(class_of(self.draft)), DOUBTED if num_unread > READ_WITH_EASE else 1.0
        found = []
        for share in self.draft.shares:
            survival *= rate
            if survival * share < LEAST_SURVIVAL:
                break
            found.append(survival * share)
        return found

    def follow(self, tokens: Sequence[int], rates_of_all: AcceptanceRates) -> None:
        """Take in what the text has more than at the last look, and learn whether its guess was right.

        rates_of_all: what others have taught, which learn it too.
        """
        if self.guess.tokens:
            came = tokens[self.history.length : self.history.length + len(self.guess.tokens)]
            right = next((at for at, one in enumerate(came) if one != self.guess.tokens[at]), len(came))
            place, reached = class_of(self.guess), min(len(came), right + 1)
            self.rates.verified(place, reached, right, KEPT)
            rates_of_all.verified(place, reached, right, KEPT_BY_ALL)
        self.history.follow(tokens)

    def look(self, found: Draft, most: int, of_model: Draft = NO_DRAFT) -> None:
        """What a look at the text gave, unless going on with the copy behind a replaced token is likelier to be right,
        or what a model will draft.

        most: tokens of the copy.
        """
        resumed = self.copy.resumed(self.history.ids, self.history.length, most)
        found = max(found, resumed, key=self._likelihood)
        self.copy.follow(found, self.history.length)
        self.draft, self.guess = max(found, of_model, key=self._likelihood), found if found.matched else NO_DRAFT
        most_rest = UNTRIED_REST if found.matched else MOST_REST
        self.rest = min(most_rest, (1 << self.misses) - 1) if found.matched or not found.tokens else 0
        self.misses = min(self.misses + 1, MOST_REST.bit_length())

    def tries(self, count: int) -> None:
        """So many of the draft's tokens are verified."""
        self.untried = 0 if count else self.untried + 1
        if count and self.draft.matched:
            self.guess, self.misses, self.rest = NO_DRAFT, 0, 0

    def _likelihood(self, draft: Draft) -> float:
        """Of its first token."""
        return self.rates.of(class_of(draft)) * draft.shares[0] if draft.tokens else 0.0


def class_of(draft: Draft) -> int:
    """Of `CLASSES`."""
    return min(draft.matched.bit_length(), CLASSES - 1)
