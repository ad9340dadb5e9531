"""Troubles that a count alone does not show: sequences that lose their KV cache to others, load that lies on one
replica, and tokens drafted in vain. `window.py` measures them at each tick; `workload.py` and the loop read them."""

from statistics import fmean
from typing import Final

from msgspec import Struct

from kvasir_operator.scaling.load_counts import LoadCounts, total
from kvasir_operator.scaling.window import RECENT_S, LoadWindow

LEAST_PREEMPTIONS: Final = 3
PREEMPTED_SHARE: Final = 0.05
"""Of the sequences within a minute: fewer are computed again at less cost than that of a replica."""
LEAST_DRAFTED: Final = 1_000
SETTLED_S: Final = 50.0
"""A new replica has no load at first, which is no imbalance."""


class LoadPressure(Struct, frozen=True, kw_only=True):
    """Since the number of serving replicas changed, within a minute. preemptions: sequences that lost their blocks;
    exhausted: whether these are many. imbalance: see LoadSample; 0 before most of a minute was seen. acceptance: of the
    tokens drafted ahead those that were accepted, 0..1; 1 of few."""

    preemptions: float = 0.0
    exhausted: bool = False
    imbalance: float = 0.0
    busiest: str = ""
    acceptance: float = 1.0


def pressure(window: LoadWindow) -> LoadPressure:
    """Of the samples of a window."""
    last = window.last
    if last is None:
        return LoadPressure()
    recent = window.since(last.at - RECENT_S)
    others = [i for i, sample in enumerate(recent) if sample.serving != last.serving]
    alike = recent[others[-1] + 1 :] if others else recent
    each = [sample.counts for sample in alike[1:]]  # the oldest one counted for another number of replicas
    # Most services lose no blocks and draft nothing, and sums over a minute are a large part of a tick.
    counts = total(each) if any(c.preemptions or c.drafted for c in each) else LoadCounts()
    sequences = counts.arrivals + last.gauges.running
    settled = last.at - alike[0].at >= SETTLED_S
    return LoadPressure(
        preemptions=counts.preemptions,
        exhausted=counts.preemptions >= max(LEAST_PREEMPTIONS, PREEMPTED_SHARE * sequences),
        imbalance=fmean([sample.imbalance for sample in alike]) if settled else 0.0,
        busiest=last.busiest,
        acceptance=counts.accepted / counts.drafted if counts.drafted >= LEAST_DRAFTED else 1.0,
    )
