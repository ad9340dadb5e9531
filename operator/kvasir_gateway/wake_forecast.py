"""How long until a held request is computed: until a service that has no replica takes requests, from how long that
took before, and until it is a request's turn where all replicas are busy, from how fast others went. Pure.

A wake begins with the first request that has to wait and ends when one of them goes to a replica. What the gateway has
measured itself includes the autoscaler, the node, the image, the weights and the probes; before a first one the last
start of a replica, as the service's status has it, and the time in which the autoscaler looks again stand for it.
"""

from collections import deque
from collections.abc import Container
from statistics import median
from typing import Final

KEPT: Final = 5
"""Wakes of a service that are remembered: what a start takes changes with caches and nodes."""
KEPT_TURNS: Final = 64
"""Requests that went, by which those behind them are predicted."""
NOTICE_S: Final = 2.0
"""In which the autoscaler sees the first request, and the gateway the replica."""


class WakeForecast:
    """The wakes of all services, by their keys. Times are on the caller's clock."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._taken: dict[str, deque[float]] = {}

    def begin(self, service: str, now_s: float) -> None:
        """A request waits; nothing changes where others do already."""
        self._began.setdefault(service, now_s)

    def end(self, service: str, now_s: float, *, woken: bool) -> None:
        """No request waits any more, or the first of them goes to a replica. woken: it does."""
        began_s = self._began.pop(service, None)
        if woken and began_s is not None:
            self._taken.setdefault(service, deque(maxlen=KEPT)).append(now_s - began_s)

    def keep(self, services: frozenset[str]) -> None:
        """Forget all other services."""
        for known in (self._began, self._taken):
            for service in known.keys() - services:
                del known[service]

    def eta_s(self, service: str, now_s: float, *, cold_start_s: float, reported_s: float = -1.0) -> float | None:
        """Seconds that are left, None where nothing is known or it takes longer than it ever did.

        cold_start_s: of the service's last replica, 0 unknown. reported_s: what a starting replica itself predicts for
        its weights, -1 unknown.
        """
        taken = self._taken.get(service)
        whole_s = median(taken) if taken else cold_start_s + NOTICE_S if cold_start_s > 0 else 0.0
        left_s = whole_s - (now_s - self._began.get(service, now_s))
        if left_s > 0:
            return left_s
        return reported_s if reported_s > 0 else None


class TurnForecast:
    """When requests of a service that has replicas went, by the keys of services. Times are on the caller's clock."""

    def __init__(self) -> None:
        self._went: dict[str, deque[float]] = {}

    def went(self, service: str, now_s: float) -> None:
        """A held request goes to a replica."""
        self._went.setdefault(service, deque(maxlen=KEPT_TURNS)).append(now_s)

    def keep(self, services: Container[str]) -> None:
        """Forget all other services: those for which nothing waits any more."""
        self._went = {service: went for service, went in self._went.items() if service in services}

    def eta_s(self, service: str, place: int, now_s: float) -> float | None:
        """Seconds until it is the turn of the request with this place (from 1), with those that wait at replicas before
        it; None before two others went. They go as fast as replicas take them from their queues, which are full."""
        went = self._went.get(service)
        if went is None or len(went) < 2 or now_s <= went[0]:
            return None
        return place * (now_s - went[0]) / (len(went) - 1)
