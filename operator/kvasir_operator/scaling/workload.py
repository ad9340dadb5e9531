"""What the load of a service is: how many requests there are, how fast they come, and what one of them takes.

Called by `decide.py`. It measures; how many replicas that needs is decided in `demand.py`.
"""

from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean
from typing import Final, NamedTuple

from kvasir_operator.scaling.load_counts import LoadCounts, added, total
from kvasir_operator.scaling.pressure import pressure
from kvasir_operator.scaling.step_model import StepModel
from kvasir_operator.scaling.window import KEPT_S, RECENT_S, LoadWindow

PRESENT_S: Final = 4.0
"""Gauges are averaged over so long: a spike of one step is no demand, ten seconds of waiting are too many."""
FAST_S: Final = 10.0
LEAST_ARRIVALS: Final = 20
CHANCE: Final = 2.0
"""Standard errors of a Poisson count by which a rate must differ to be another one."""
BYTES_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """running, waiting: requests; held ones wait. queued: whether any waited within the last minute. waiting_tokens:
    prompt tokens that wait; pinned_tokens: of the KV cache, as they are; running_kv: those of the running requests once
    they are of mean age. arrivals_per_s: requests, at most as fast as what is in flight can have come,
    and those of them that were refused for want of room, refused_per_s, each as one however often it was sent again.

    Of one request on the mean: prompt_tokens to be computed, output_tokens, kv_tokens that it pins while it runs,
    seconds that it runs. step: of decode. exhausted: many sequences lose their KV
    cache to others.
    """

    running: float = 0.0
    waiting: float = 0.0
    queued: bool = False
    waiting_tokens: float = 0.0
    pinned_tokens: float = 0.0
    running_kv: float = 0.0
    arrivals_per_s: float = 0.0
    refused_per_s: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    kv_tokens: float = 0.0
    seconds: float = 0.0
    step: StepModel = field(default_factory=StepModel)
    exhausted: bool = False

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens to be computed per second."""
        return self.arrivals_per_s * self.prompt_tokens


def workload(window: LoadWindow, *, now: float) -> Workload:
    """Measured over a window; nothing of an empty one. now: seconds of a steady clock."""
    last = window.last
    if last is None:
        return Workload()
    present = [s.gauges for s in window.since(now - PRESENT_S)] or [last.gauges]
    minute = window.since(now - RECENT_S)
    whole = total(s.counts for s in window.samples)
    if whole.ended - whole.expired < LEAST_ARRIVALS:
        whole = added(whole, window.known.past)  # of few requests, those that ran long are not among the ended ones
    pinned, running = fmean(g.pinned_tokens for g in present), fmean(g.running for g in present)
    waiting = last.gauges.waiting + last.held
    # Half-way between those that came and those that ended: requests that still run have on the mean half of it behind.
    # Those that were refused while they waited took nothing.
    passed = (whole.arrivals + whole.ended) / 2 - whole.expired
    seconds = whole.running_s / passed if passed else 0.0
    pinned_s, running_s = sum(s.counts.pinned_s for s in minute), sum(s.counts.running_s for s in minute)
    if not running_s:
        pinned_s, running_s = whole.pinned_s, whole.running_s
    kv_tokens = pinned_s / running_s if running_s else 0.0
    rate = _rate(window, now, residence_s=seconds)
    most = (running + waiting) / seconds + rate.refused if seconds else rate.all
    return Workload(
        running=running,
        waiting=waiting,
        queued=any(s.gauges.waiting or s.held for s in minute),
        waiting_tokens=last.gauges.waiting_tokens + last.held_bytes / BYTES_PER_TOKEN * (1 - _hit_fraction(whole)),
        pinned_tokens=pinned,
        running_kv=max(pinned, running * kv_tokens),
        arrivals_per_s=min(rate.all, most),
        refused_per_s=rate.refused,
        prompt_tokens=whole.prompt_tokens / whole.arrivals if whole.arrivals else 0.0,
        output_tokens=whole.output_tokens / passed if passed else 0.0,
        kv_tokens=kv_tokens,
        seconds=seconds,
        step=window.step,
        exhausted=pressure(window).exhausted,
    )


class _ArrivalRate(NamedTuple):
    """Per second. all: requests that came; refused: those of them that no replica computed."""

    all: float = 0.0
    refused: float = 0.0


def _rate(window: LoadWindow, now: float, *, residence_s: float) -> _ArrivalRate:
    """The mean of a minute, or of a shorter stretch that is as long as a request stays, where that is larger by more
    than chance. So a rise is seen at once, noise is not, and a burst is not taken for a stream.
    What a gateway had held came at another time than it arrived at pods, and is no part of it."""
    least_s, slow_s = max(FAST_S, residence_s), max(RECENT_S, min(residence_s, KEPT_S))
    arrivals = refused = expired = span_s = error = 0.0
    fast = slow = _ArrivalRate()
    for sample in reversed(window.samples):
        if sample.at <= now - slow_s:
            break
        counts = sample.counts
        arrivals, refused = arrivals + counts.arrivals - counts.released, refused + counts.refused
        expired += counts.expired
        span_s += counts.span_s
        # Of requests that were refused before, more may come again in a stretch than are refused in it.
        came, turned_away = arrivals + max(0.0, refused), expired + max(0.0, refused)
        # A few arrivals in the first second must not look like many per second.
        stretch_s = max(span_s, FAST_S)
        slow = _ArrivalRate(came / stretch_s, turned_away / stretch_s)
        if not fast.all and span_s >= least_s and came >= LEAST_ARRIVALS:
            fast, error = slow, sqrt(came) / span_s
    return fast if fast.all > slow.all + CHANCE * error else slow


def _hit_fraction(whole: LoadCounts) -> float:
    return min(1.0, whole.hit_tokens / whole.query_tokens) if whole.query_tokens else 0.0
