"""How fast requests come: now, and whether the rate has been growing for minutes. Called by `workload.py`.

What a gateway had held came at another time than it arrived at pods, and is no part of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf, sqrt
from operator import add, attrgetter, sub
from typing import Final, NamedTuple

from kvasir_operator.scaling.arrival_spread import LEAST_SPAN_S
from kvasir_operator.scaling.past_load import Stretch
from kvasir_operator.scaling.window import KEPT_S, RECENT_S, LoadSample, LoadWindow

FAST_S: Final = 10.0
LEAST_ARRIVALS: Final = 20
CHANCE: Final = 3.0
"""Standard errors of a Poisson count by which a rate must differ to be another one."""
STRETCHES: Final = 4
"""Minutes of which each has to have more arrivals than the one before, for a rise that is taken to go on."""
LEAST_RISE: Final = 0.2
"""Of the largest of these rises: where the least one is smaller, the rate made a step."""


class ArrivalRate(NamedTuple):
    """Requests per second. all: that came; refused: those of them that no replica computed. growth: of the rate in each
    second, 0 unless it has gone on for minutes."""

    all: float = 0.0
    refused: float = 0.0
    growth: float = 0.0


def arrival_rate(window: LoadWindow, *, residence_s: float, now: float) -> ArrivalRate:
    """The mean of a minute, or of a shorter stretch that is as long as a request stays, where that is larger by more
    than chance. So a rise is seen at once, noise is not, and a burst is not taken for a stream.

    A stretch that stands out has more arrivals by chance, too: a standard error is taken from its rate, less where
    arrivals come in bursts, so that chance is a smaller part of how they vary.
    """
    least_s, slow_s = max(FAST_S, residence_s), max(RECENT_S, min(residence_s, KEPT_S))
    stretches = window.stretches
    counts = [stretch.counts for stretch in stretches[bisect_right(stretches, now - slow_s, key=_AT) :]]
    if not counts:
        return ArrivalRate()
    # Each list is of stretches that end now, the shortest first.
    spans, arrived, expired, refused, released = zip(*[c[:5] for c in reversed(counts)], strict=True)
    spans_s, came = list(accumulate(spans)), list(accumulate(arrived))
    if any(released):
        came = list(map(sub, came, accumulate(released)))
    if any(refused):
        # Of requests that were refused before, more may come again in a stretch than are refused in it.
        came = list(map(add, came, [max(0.0, number) for number in accumulate(refused)]))

    def rate(i: int) -> ArrivalRate:
        # A few arrivals in the first second must not look like many per second.
        stretch_s = max(spans_s[i], FAST_S)
        turned_away = sum(expired[: i + 1]) + max(0.0, sum(refused[: i + 1]))
        return ArrivalRate(came[i] / stretch_s, turned_away / stretch_s)

    slow, spread = rate(len(came) - 1), dispersion(window)
    found, usual = slow, slow.all
    for i in range(bisect_left(spans_s, least_s), len(came)):
        number, span_s = came[i], spans_s[i]
        if number < LEAST_ARRIVALS or number <= usual * span_s:
            continue
        error = 1 / sqrt(number) / spread
        stands_out = (1 - CHANCE * error) * number / span_s > usual
        if stands_out and (1 - error) * (number / max(span_s, FAST_S)) >= found.all:
            found = max(found, _scaled(rate(i), 1 - error))
    return found._replace(growth=_growth(stretches, now))


def dispersion(window: LoadWindow) -> float:
    """How much more arrivals vary than by chance, at least 1: see ArrivalSpread."""
    past = window.past
    later = [sample.counts for sample in window.samples if sample.counts.span_s >= LEAST_SPAN_S]
    return past.spread.extended(*([past.open.counts] if past.open else ()), *later).dispersion


def _growth(stretches: Sequence[Stretch | LoadSample], now: float) -> float:
    """The least rise from a minute to the next one. A step rises once, a burst falls again, and of noise the least rise
    is small. The oldest minutes come first: their ticks are joined, and most loads show there that they do not rise."""
    rises: list[float] = []
    begin, before = bisect_right(stretches, now - STRETCHES * RECENT_S, key=_AT), -inf
    for number in reversed(range(STRETCHES)):
        end = bisect_right(stretches, now - number * RECENT_S, lo=begin, key=_AT)
        counts = [stretch.counts for stretch in stretches[begin:end]]
        span_s = sum([c.span_s for c in counts])
        if span_s < RECENT_S / 2:
            return 0.0
        rate = sum([c.arrivals - c.released + c.refused for c in counts]) / span_s
        if rate <= before:
            return 0.0
        rises.append(rate - before)
        begin, before = end, rate
    rises.remove(inf)
    least, most = min(rises), max(rises)
    return least / RECENT_S if least > LEAST_RISE * most else 0.0


def _scaled(rate: ArrivalRate, factor: float) -> ArrivalRate:
    return ArrivalRate(factor * rate.all, factor * rate.refused)


_AT: Final = attrgetter("at")
