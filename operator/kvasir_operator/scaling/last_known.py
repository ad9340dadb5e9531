"""What is known of a service's requests and replicas when there are none: for the first replica after zero.

Called by `window.py` at each tick. Which count follows from it is decided in `idle.py` and `demand.py`.
"""

from collections.abc import Iterable
from math import inf
from typing import Final, NamedTuple

from kvasir_api.state import RuntimeState, ServiceDemand
from kvasir_operator.scaling.capacity import UNKNOWN, ReplicaCapacity
from kvasir_operator.scaling.load_counts import LoadCounts, added

HALF_LIFE_S: Final = 1_800.0
"""Of counts that have left the window, by the time that they span: idle time forgets nothing."""
RELEASED_S: Final = 10.0
"""So long after a gateway forwarded what it had held, pods are expected to count it as arrivals."""


class LastKnown(NamedTuple):
    """capacity: of the next replica. past: counts that have left the window. requested_at: when a request came, waited
    or ran last, on the steady clock. releasing, released_at: requests that gateways forwarded, that no pod has counted
    yet, and when."""

    capacity: ReplicaCapacity = UNKNOWN
    past: LoadCounts = LoadCounts()
    requested_at: float = -inf
    releasing: float = 0.0
    released_at: float = -inf


def with_past(known: LastKnown, leaving: Iterable[LoadCounts]) -> LastKnown:
    """With counts that leave the window."""
    past = known.past
    for counts in leaving:
        if counts.arrivals or counts.running_s:
            past = added(counts, past, 0.5 ** (counts.span_s / HALF_LIFE_S))
    return known if past is known.past else known._replace(past=past)


def with_requests(
    known: LastKnown,
    readings: Iterable[RuntimeState],
    gateways: Iterable[ServiceDemand],
    *,
    arrivals: float,
    now: float,
) -> LastKnown:
    """With what pods and gateways report of requests now. arrivals: since the tick before."""
    asked = list(gateways)
    busy = any(r.running or r.waiting for r in readings) or any(g.held or g.inflight for g in asked)
    ages = [g.last_request_age_s for g in asked if g.last_request_age_s >= 0]
    last = now if busy or arrivals else now - min(ages, default=inf)
    return known if last <= known.requested_at else known._replace(requested_at=last)


def with_release(known: LastKnown, *, released: float, arrivals: float, now: float) -> tuple[LastKnown, float]:
    """How many of the arrivals of this tick a gateway had held. released: by how many fewer it holds since."""
    if released <= 0 and not known.releasing:
        return known, 0.0
    since = now if released > 0 else known.released_at
    due = max(0.0, released) + (known.releasing if now - known.released_at <= RELEASED_S else 0.0)
    taken = min(due, arrivals)
    return known._replace(releasing=due - taken, released_at=since), taken
