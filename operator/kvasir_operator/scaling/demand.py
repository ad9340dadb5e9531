"""The signals: how many replicas the present demand needs, each as an absolute number, never as a factor on what runs.

kv       arrivals/s × KV token-seconds of a request (Little's law), at least what is pinned now, over what a replica may
         hold: its capacity, less a tenth that a full allocator cannot use, times the edge
backlog  work that waits, to be done within the horizon: uncached prompt tokens over the prefill rate, or KV
         token-seconds over what a replica may hold, whichever needs more
prefill  uncached prompt tokens arriving per second over four fifths of the prefill rate
The result is the larger of kv + backlog and prefill. Splitting what waits from what arrives keeps a short queue from
being taken for a steady demand.
"""

from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Final

from kvasir_operator.scaling.window import LoadSample, LoadWindow

FAST_S: Final = 10.0
PINNED_S: Final = 4.0
"""Pinned tokens are averaged over so long: a spike of one step is no demand, ten seconds of waiting are too many."""
SLOW_S: Final = 60.0
ALLOCATOR_FRACTION: Final = 0.90
PREFILL_FRACTION: Final = 0.80
BYTES_PER_TOKEN: Final = 4
EPSILON: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Replicas by signal, as fractions. known: whether the capacity of any replica was read. sentence: the numbers."""

    known: bool
    kv: float = 0.0
    backlog: float = 0.0
    prefill: float = 0.0
    sentence: str = "no replica has reported its capacity yet"

    @property
    def replicas(self) -> int:
        """Whole replicas that the signals require."""
        return ceil(max(self.kv + self.backlog, self.prefill) - EPSILON)

    @property
    def signal(self) -> str:
        """The signal that requires most."""
        if self.prefill > self.kv + self.backlog:
            return "prefill"
        return "backlog" if self.backlog > self.kv else "kv"

    @property
    def name(self) -> str:
        """The signal as a sentence names it."""
        return "KV" if self.signal == "kv" else self.signal


def demand(window: LoadWindow, *, edge_fraction: float, horizon_s: float, now: float) -> Demand:
    """Demand at one edge: the target when asking whether to add, the release when asking whether to remove."""
    last = window.last
    if last is None or not last.capacity_tokens:
        return Demand(known=False)
    usable = ALLOCATOR_FRACTION * last.capacity_tokens
    if last.limit_tokens:
        usable = min(usable, last.limit_tokens)
    held_tokens = edge_fraction * usable
    arriving = _rate(window, now, "arrivals")
    each = _kv_of_a_request(window)
    steady = arriving * each
    pinned = _pinned(window, now)
    needed = max(steady, pinned)
    waiting = last.waiting + last.held
    waiting_tokens = last.waiting_tokens + last.held_bytes / BYTES_PER_TOKEN * (1 - _hit_fraction(window))
    prompt_rate = _rate(window, now, "new_tokens")
    rate = last.prefill_rate
    prompt_backlog = waiting_tokens / (rate * horizon_s) if rate else 0.0
    return Demand(
        known=True,
        kv=needed / held_tokens,
        backlog=max(prompt_backlog, waiting * each / (horizon_s * held_tokens)),
        prefill=prompt_rate / (rate * PREFILL_FRACTION) if rate else 0.0,
        sentence=(
            f"{arriving:.1f} requests/s × {each:,.0f} KV token·s = {steady:,.0f} tokens, {pinned:,.0f} pinned, "
            f"a replica holds {held_tokens:,.0f} at {edge_fraction:.0%}; "
            f"{waiting:,} waiting with {waiting_tokens:,.0f} tokens; "
            f"{prompt_rate:,.0f} new prompt tokens/s where a replica computes {rate:,.0f}"
        ),
    )


def _rate(window: LoadWindow, now: float, counter: str) -> float:
    """Per second: the larger of a fast and a slow mean, so that a rise is seen at once and a fall only slowly."""
    return max(_mean_rate(window, now, counter, FAST_S), _mean_rate(window, now, counter, SLOW_S))


def _mean_rate(window: LoadWindow, now: float, counter: str, span_s: float) -> float:
    first = window.samples[0].at
    samples = window.since(max(first, now - span_s))
    # Before a whole span was seen, a few arrivals in the first second must not look like many per second.
    seen_s = max(min(span_s, now - first), FAST_S)
    return float(sum(getattr(sample, counter) for sample in samples)) / seen_s


def _kv_of_a_request(window: LoadWindow) -> float:
    """Mean KV token-seconds of a request over the whole window; 0 before the first one ended."""
    ended = sum(sample.ended for sample in window.samples)
    return sum(sample.kv_token_seconds for sample in window.samples) / ended if ended else 0.0


def _pinned(window: LoadWindow, now: float) -> float:
    recent: tuple[LoadSample, ...] = window.since(now - PINNED_S) or window.samples[-1:]
    return fmean(sample.pinned_tokens for sample in recent)


def _hit_fraction(window: LoadWindow) -> float:
    asked = sum(sample.query_tokens for sample in window.samples)
    return sum(sample.hit_tokens for sample in window.samples) / asked if asked else 0.0
