"""What the load of a service is: how many requests there are, how fast they come, and what one of them takes.

Called by `decide.py`. It measures; how many replicas that needs is decided in `demand.py`.
"""

from collections.abc import Sequence
from functools import reduce
from math import sqrt
from statistics import fmean
from typing import Final, NamedTuple

from kvasir_operator.scaling.arrivals import arrival_rate
from kvasir_operator.scaling.load_counts import LoadCounts, added, total
from kvasir_operator.scaling.pressure import LEAST_PREEMPTIONS, SETTLED_S, pressure
from kvasir_operator.scaling.step_model import StepLine
from kvasir_operator.scaling.window import RECENT_S, LoadSample, LoadWindow

PRESENT_S: Final = 4.0
"""Gauges are averaged over so long: a spike of one step is no demand, ten seconds of waiting are too many."""
LEAST_ENDED: Final = 20
CHANCE: Final = 2.0
"""Standard errors of a Poisson count that may be chance."""
BYTES_PER_TOKEN: Final = 4


class Workload(NamedTuple):
    """running, waiting: requests; held ones wait. queued: whether any waited within the last minute; stuck: whether
    some did all the time. waiting_tokens: prompt tokens that wait; pinned_tokens: of the KV cache, as they are;
    running_kv: those of the running requests once they are of mean age. usual_running, usual_kv: no more of these than
    in the mean of a minute, and what the present ones exceed it by beyond chance. arrivals_per_s: requests, at most as
    fast as what is in flight can have come, and those of them that were refused for want of room, refused_per_s, each
    as one however often it was sent again. growth: requests/s by which that rate rises each second; 0 unless it has
    risen for minutes.

    Of one request on the mean: prompt_tokens to be computed, output_tokens, kv_tokens that it pins while it runs,
    seconds that it runs. step: of decode. exhausted: many sequences lose their KV cache to others.
    """

    running: float = 0.0
    waiting: float = 0.0
    queued: bool = False
    stuck: bool = False
    waiting_tokens: float = 0.0
    pinned_tokens: float = 0.0
    running_kv: float = 0.0
    usual_running: float = 0.0
    usual_kv: float = 0.0
    growth: float = 0.0
    arrivals_per_s: float = 0.0
    refused_per_s: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    kv_tokens: float = 0.0
    seconds: float = 0.0
    step: StepLine = StepLine()
    exhausted: bool = False

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens to be computed per second."""
        return self.arrivals_per_s * self.prompt_tokens

    def ahead(self, seconds: float) -> "Workload":
        """As it will be in so many seconds where its growth goes on, at most to twice the rate, which is the mean of a
        minute."""
        more = min(self.arrivals_per_s, self.growth * (RECENT_S / 2 + seconds))
        return self._replace(arrivals_per_s=self.arrivals_per_s + more) if more else self


def workload(window: LoadWindow, *, now: float) -> Workload:
    """Measured over a window; nothing of an empty one. now: seconds of a steady clock."""
    last = window.last
    if last is None:
        return Workload()
    present = [s.gauges for s in window.since(now - PRESENT_S)] or [last.gauges]
    minute = window.since(now - RECENT_S) or (last,)
    recent = total([s.counts for s in minute])
    earlier = [s.counts for s in window.samples[: -len(minute)]]
    whole = reduce(added, (*earlier, recent), window.past.counts)
    if whole.ended - whole.expired < LEAST_ENDED:
        whole = added(whole, window.known.past)  # of few requests, those that ran long are not among the ended ones
    pinned, running = fmean([g.pinned_tokens for g in present]), fmean([g.running for g in present])
    waiting = last.gauges.waiting + last.held
    passed = _passed(whole)
    seconds = _stay_s(whole)
    pinned_s, running_s = recent.pinned_s, recent.running_s
    if not running_s:
        pinned_s, running_s = whole.pinned_s, whole.running_s
    kv_tokens = pinned_s / running_s if running_s else 0.0
    rate = arrival_rate(window, residence_s=seconds, now=now)
    stay_s = min(seconds, _stay_s(recent) or seconds)  # after an overload requests stay as short as before
    inflight = running + waiting
    most = (inflight + CHANCE * sqrt(inflight)) / stay_s + rate.refused if stay_s else rate.all
    running_kv = max(pinned, running * kv_tokens)
    usual = min(1.0, _usual(fmean([s.gauges.running for s in minute]), running) / running) if running else 1.0
    return Workload(
        running=running,
        waiting=waiting,
        queued=any(s.gauges.waiting or s.held for s in minute),
        stuck=_is_stuck(minute),
        waiting_tokens=last.gauges.waiting_tokens + last.held_bytes / BYTES_PER_TOKEN * (1 - _hit_fraction(whole)),
        pinned_tokens=pinned,
        running_kv=running_kv,
        usual_running=usual * running,
        usual_kv=usual * running_kv,
        growth=rate.growth,
        arrivals_per_s=min(rate.all, most),
        refused_per_s=rate.refused,
        prompt_tokens=whole.prompt_tokens / whole.arrivals if whole.arrivals else 0.0,
        output_tokens=whole.output_tokens / passed if passed else 0.0,
        kv_tokens=kv_tokens,
        seconds=seconds,
        step=window.step.line,
        exhausted=whole.preemptions >= LEAST_PREEMPTIONS and pressure(window).exhausted,
    )


def _is_stuck(minute: Sequence[LoadSample]) -> bool:
    """Whether requests have waited all the time, before as many replicas: they do not serve what they were measured to.
    A cache that holds a few long requests is never as full as that of many."""
    last = minute[-1]
    return last.at - minute[0].at >= SETTLED_S and all(
        s.serving == last.serving and (s.gauges.waiting or s.held) for s in minute
    )


def _passed(counts: LoadCounts) -> float:
    """Requests, half-way between those that came and those that ended: such as still run have on the mean half of it
    behind. Those that were refused while they waited took nothing."""
    return (counts.arrivals + counts.ended) / 2 - counts.expired


def _stay_s(counts: LoadCounts) -> float:
    """Seconds that a request runs on the mean; 0 of none."""
    passed = _passed(counts)
    return counts.running_s / passed if passed > 0 else 0.0


def _usual(mean: float, now: float) -> float:
    """A number of running requests without what chance adds: it comes and goes within the room above the target."""
    return max(mean, now - CHANCE * sqrt(now))


def _hit_fraction(whole: LoadCounts) -> float:
    return min(1.0, whole.hit_tokens / whole.query_tokens) if whole.query_tokens else 0.0
