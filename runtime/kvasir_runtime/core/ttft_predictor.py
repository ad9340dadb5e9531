"""When the first token of a request will come, by measured rates, and how accurate such predictions were.

Pure: seconds are given. Rates are measured while something waits for them, and never guessed: what was not measured is
not predicted.
"""

from bisect import bisect_left, insort
from collections import deque
from typing import Final, NamedTuple

from kvasir_runtime.core.throughput import MEMORY_S, DecayingMean

KEPT: Final = 200
"""Ratios of the last requests."""
LEAST: Final = 20
"""Of them, before requests are refused by predictions."""
LOW: Final = 0.1
HIGH: Final = 0.9
"""Quantiles of the ratios; the further they are apart, the less accurate predictions are."""
MAX_SPREAD: Final = 3.0
"""Of the HIGH quantile over the LOW one, above which predictions are too inaccurate to refuse by."""
LEAST_ADMITTED: Final = 8
"""Requests that got the rows of others, before the rate at which rows come free counts."""


class QueuedWork(NamedTuple):
    """What has to be done before a first token. tokens: of prompts that are computed before; own: of its own prompt.

    places: requests that have to leave first. later: of the tokens, those of prompts that are expected to arrive later.
    """

    tokens: int
    own: int
    places: int
    later: int = 0


class StepLoad(NamedTuple):
    """What a step does for requests that wait. prompt_tokens: computed. num_admitted: requests that got rows.

    is_full: prompt tokens are left that its budget did not hold. lacks_rows: requests wait though its budget had room.
    """

    prompt_tokens: int
    num_admitted: int
    is_full: bool
    lacks_rows: bool


class TtftPredictor:
    """Rates of prompts and of rows that come free, and the last ratios of actual to predicted times."""

    __slots__ = ("_last", "_num_admitted", "_places", "_prompts", "_sorted", "_step")

    def __init__(self) -> None:
        self._prompts, self._places, self._step = DecayingMean(), DecayingMean(), DecayingMean()
        self._num_admitted = 0
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def observe(self, load: StepLoad, elapsed_s: float) -> None:
        """A step took so many seconds."""
        if elapsed_s <= 0:
            return
        keep = 1.0 / (1.0 + elapsed_s / MEMORY_S)
        self._step.add(elapsed_s, 1.0, keep)
        if load.is_full:
            self._prompts.add(load.prompt_tokens, elapsed_s, keep)
        if load.lacks_rows:
            self._places.add(load.num_admitted, elapsed_s, keep)
            self._num_admitted += load.num_admitted

    def predict(self, work: QueuedWork) -> float:
        """Seconds to the first token; -1 where a rate that counts was not measured yet.

        Where rows are what is waited for and no step was ever full of prompts, prompts take no time but their steps'.
        """
        rate, by_rows = self.prompt_rate, work.places > 0 and self._num_admitted >= LEAST_ADMITTED
        if work.tokens + work.own and not rate and not by_rows:
            return -1.0
        places_s = work.places / self._places.value if by_rows else 0.0
        prompts_s = work.tokens / rate if rate else 0.0
        return max(prompts_s, places_s) + self.service_s(work.own)

    def service_s(self, tokens: int) -> float:
        """Seconds to the first token of a prompt that is computed at once."""
        return (tokens / self.prompt_rate if self.prompt_rate else 0.0) + self._step.value

    def saved_s(self, tokens: int, *, lacks_rows: bool) -> float:
        """By which others have their first tokens earlier once a request before them leaves with so many tokens."""
        if lacks_rows and self._num_admitted >= LEAST_ADMITTED:
            return 1 / self._places.value
        return tokens / self.prompt_rate if self.prompt_rate else 0.0

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second of steps that were full of them; 0 until one was."""
        return self._prompts.value

    def add(self, predicted_s: float, actual_s: float) -> None:
        """A first token came."""
        ratio = max(0.001, round(actual_s / predicted_s, 3))
        self._last.append(ratio)
        insort(self._sorted, ratio)
        if len(self._last) > KEPT:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]

    def ratio(self, quantile: float) -> float:
        """Of actual to predicted seconds; 1 before there is any."""
        return self._sorted[int(quantile * (len(self._sorted) - 1))] if self._sorted else 1.0

    @property
    def ratios(self) -> tuple[float, ...]:
        """The last, oldest first."""
        return tuple(self._last)

    @property
    def calibrated(self) -> bool:
        """Whether predictions are accurate enough to refuse requests by them."""
        return len(self._last) >= LEAST and self.ratio(HIGH) <= MAX_SPREAD * self.ratio(LOW)
