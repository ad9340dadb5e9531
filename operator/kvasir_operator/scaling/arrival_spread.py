"""How much arrivals vary between neighbouring stretches of time: sums that grow by one stretch after the other, so that
memory and time do not grow with the window. Called by `past_load.py` and `arrivals.py`."""

from math import sqrt
from typing import Final, NamedTuple

from kvasir_operator.scaling.load_counts import LoadCounts

LEAST_SPAN_S: Final = 5.0
"""In a shorter stretch a single burst is everything."""


class ArrivalSpread(NamedTuple):
    """Sums over stretches of at least LEAST_SPAN_S: how many there are, their seconds and arrivals, the squared
    differences between the rates of neighbours in units of their expected variance; and the last stretch."""

    number: int = 0
    span_s: float = 0.0
    came: float = 0.0
    squares: float = 0.0
    last_span_s: float = 0.0
    last_came: float = 0.0

    def extended(self, *following: LoadCounts) -> "ArrivalSpread":
        """With the next stretches, from the oldest to the newest."""
        number, whole_s, whole, squares, last_span_s, last_came = self
        for counts in following:
            span_s = counts.span_s
            if span_s < LEAST_SPAN_S:
                continue
            came = counts.came
            if number:
                difference = came / span_s - last_came / last_span_s
                squares += difference**2 / (1 / last_span_s + 1 / span_s)
            number, whole_s, whole, last_span_s, last_came = number + 1, whole_s + span_s, whole + came, span_s, came
        return ArrivalSpread(number, whole_s, whole, squares, last_span_s, last_came)

    @property
    def dispersion(self) -> float:
        """Variance of arrivals over their mean, at least 1, which is that of a Poisson process: from differences
        between neighbouring stretches, so that a slow change of the rate is no part of it (von Neumann 1941)."""
        pairs = self.number - 1
        if pairs < 1 or not self.came:
            return 1.0
        return max(1.0, self.squares / pairs / (self.came / self.span_s) - sqrt(3 / pairs))
