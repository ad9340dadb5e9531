"""Whether requests were refused rightly: each refusal is checked again at its deadline, against the work done by then.

A request could have been served in time if the engine did as much from its arrival to the last moment to begin with its
prompt, or could have, as was before it when it arrived. Shorter prompts that arrived later would have passed it: what
they took is not counted, up to half of all, as far as it exceeds what was expected of them. Pure: seconds are given.
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass
from typing import Final

from kvasir_runtime.core.ttft_predictor import QueuedWork, StepLoad

MAX_OPEN: Final = 4096
"""Refusals whose deadline has not come; further ones are counted and not checked."""

MAX_COMPUTED: Final = 1024
"""Prompts that were computed last, among which are those that would have passed one that was refused."""

NO_QUEUE: Final = 1_000_000
"""Places that count as given away by a step behind which nothing waits: whatever waited would have been admitted."""


@dataclass(slots=True, eq=False)
class QueuePlace:
    """Where a request came to wait, as the number-th. service_s: of its own prompt. tokens, places: what the engine had
    done by then; -1 until that step ends.
    """

    number: int
    arrived_at: float
    work: QueuedWork
    service_s: float
    tokens: float = -1.0
    places: float = -1.0


class RefusalLedger:
    """refused: requests since the start; rechecked: at their deadlines; wrong: of these, could have been served."""

    __slots__ = ("_at", "_computed", "_new", "_number", "_open", "_places", "_tokens", "rechecked", "refused", "wrong")

    def __init__(self) -> None:
        self.refused = self.rechecked = self.wrong = 0
        self._open: list[tuple[float, int, QueuePlace]] = []
        self._new: list[QueuePlace] = []
        self._computed: deque[tuple[int, int]] = deque(maxlen=MAX_COMPUTED)
        """Numbers and tokens."""
        self._number = 0
        self._at = self._tokens = self._places = 0.0

    def place(self, number: int, work: QueuedWork, now: float, service_s: float) -> QueuePlace:
        """The number-th arrival. work: before its first token. service_s: of its own prompt, once it has a row."""
        place = QueuePlace(number, now, work, service_s)
        self._new.append(place)
        return place

    def refuse(self, place: QueuePlace, deadline: float) -> None:
        """It is refused, at once or later."""
        self.refused += 1
        if len(self._open) < MAX_OPEN:
            self._number += 1
            insort(self._open, (deadline - place.service_s, self._number, place))

    def computed(self, number: int, num_tokens: int) -> None:
        """The prompt of the number-th arrival was computed, of so many tokens."""
        self._computed.append((number, num_tokens))

    def observe(self, load: StepLoad, elapsed_s: float, now: float, *, rate: float, num_rows: int) -> None:
        """A step ended now. rate: prompt tokens per second that the engine computes. num_rows: that are free.

        What a step had room for counts as done, and so does the time in which there was none.
        """
        idle_s = max(0.0, now - self._at - elapsed_s)
        done = load.prompt_tokens if load.is_full else max(load.prompt_tokens, rate * elapsed_s)
        tokens = self._tokens + done + rate * idle_s
        places = self._places + load.num_admitted + (0 if load.is_full or load.lacks_rows else NO_QUEUE)

        def share(time: float) -> float:
            """Of what was done since the step before, by a time between the two ends."""
            return min(1.0, max(0.0, (time - self._at) / (now - self._at))) if now > self._at else 1.0

        for place in self._new:
            passed = share(place.arrived_at)
            place.tokens = self._tokens + passed * (tokens - self._tokens)
            place.places = self._places + passed * (places - self._places)
        self._new.clear()
        while self._open and self._open[0][0] <= now:
            start, _, place = self._open.pop(0)
            passed = share(start)
            done_tokens = self._tokens + passed * (tokens - self._tokens) - place.tokens
            done_places = self._places + passed * (places - self._places) - place.places
            work = place.work
            self.rechecked += 1
            done_tokens -= max(0.0, min(done_tokens / 2, self._passed_by(place)) - work.later)
            self.wrong += done_tokens >= work.tokens and done_places + num_rows >= work.places
        self._at, self._tokens, self._places = now, tokens, places

    def _passed_by(self, place: QueuePlace) -> int:
        """Tokens of shorter prompts that arrived later and were computed up to now."""
        own = place.work.own
        return sum([tokens for number, tokens in self._computed if number > place.number and tokens < own])
