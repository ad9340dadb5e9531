"""A simulated service: pods that start, serve, drain and vanish, a gateway before them, and a rule that sets their
number.

Time passes in slices; a rule is called at its own period, as its real counterpart is. A request goes to the ready pod
with the fewest requests; without one it is held, and with a HoldProfile also while none has room. One that is refused
is sent again twice, as OpenAI's clients do. A pod
that leaves hands back what it has not begun and finishes the rest, whatever the rule: what is compared is the number of
pods, not how they leave.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kvasir_api.state import RuntimeState, ServiceDemand
from kvasir_operator.simulation.hold_model import HoldModel, HoldProfile
from kvasir_operator.simulation.pod_model import ActiveRequest, PodModel, PodProfile
from kvasir_operator.simulation.traffic import SimulatedRequest

SLICE_S: Final = 0.5
SATURATED_S: Final = 1.0
"""A fleet in which the best queue is older than this is saturated."""
RETRIES: Final = 2
RETRY_S: Final = 5.0
"""Until a refused request is sent again."""


NO_DEMAND: Final = HoldModel(None).demand()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """What a rule may read. ready, starting: pods; wanted: the last result. readings: of ready pods by name; draining:
    of those that finish. gateway: what that says. cold_starts_s: of the ready pods, or the last one."""

    now: float
    ready: int
    starting: int
    wanted: int
    readings: tuple[tuple[str, RuntimeState], ...] = ()
    draining: tuple[tuple[str, RuntimeState], ...] = ()
    gateway: ServiceDemand = NO_DEMAND
    cold_starts_s: tuple[float, ...] = ()

    @property
    def held(self) -> int:
        """Requests at the gateway."""
        return self.gateway.held


class ScalingRule(Protocol):
    """How many replicas there should be, asked every period_s."""

    name: str
    period_s: float

    def wanted(self, view: FleetView) -> int:
        """Replicas from now on."""


@dataclass(slots=True)
class FleetRun:
    """What happened. targets: (seconds, replicas) at each change; created: pods that were not draining, at each slice;
    delays_s: from a saturated fleet to the next pod; pod_s: seconds of all pods from creation to their end."""

    targets: list[tuple[float, int]] = field(default_factory=list)
    created: list[int] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)
    requests: list[ActiveRequest] = field(default_factory=list)
    pod_s: float = 0.0


class Fleet:
    """One service over one stretch of time."""

    def __init__(
        self, profile: PodProfile, rule: ScalingRule, *, replicas: int, most: int, hold: HoldProfile | None = None
    ) -> None:
        self._profile, self._rule, self._most = profile, rule, most
        self._pods: list[PodModel] = []
        self._gateway = HoldModel(hold)
        self._refused: list[tuple[float, ActiveRequest]] = []
        self._number, self._wanted = 0, replicas
        self._saturated_since: float | None = None
        self.run_ = FleetRun(targets=[(0.0, replicas)])
        self._grow(replicas, 0.0, ready_at=0.0)

    def run(self, requests: Iterable[SimulatedRequest], *, seconds: float) -> FleetRun:
        """Serve the requests; those that have not ended by then stay without an end."""
        coming, due = iter(requests), 0.0
        request = next(coming, None)
        for number in range(round(seconds / SLICE_S)):
            now = number * SLICE_S
            while request is not None and request.at < now + SLICE_S:
                active = ActiveRequest(request=request)
                self.run_.requests.append(active)
                self._gateway.add(active)
                request = next(coming, None)
            self._take_again(now)
            self._route(now)
            for pod in self._pods:
                if now >= pod.ready_at:
                    pod.advance(now, SLICE_S)
            self._remove_finished()
            self._watch(now + SLICE_S)
            if now >= due:
                due += self._rule.period_s
                self._scale(self._rule.wanted(self._view(now + SLICE_S)), now + SLICE_S)
            self.run_.pod_s += SLICE_S * len(self._pods)
            self.run_.created.append(sum(not pod.draining for pod in self._pods))
        return self.run_

    def _route(self, now: float) -> None:
        ready = {pod.number: pod for pod in self._pods if pod.ready(now)}
        loads = [(pod.load, pod.number) for pod in ready.values()]  # which change by what is sent alone
        heapq.heapify(loads)

        def send(active: ActiveRequest, was_held: bool) -> bool:
            pod = ready[loads[0][1]]
            if self._gateway.waits_for_room and not pod.has_room:
                return False
            is_retry = active.tries > 0 and not (was_held and self._gateway.waits_for_room)
            if not pod.submit(active, is_retry=is_retry):
                self._retry(active, now)
            heapq.heapreplace(loads, (pod.load, pod.number))
            return True

        if ready:
            self._gateway.forward(send)
        for active in self._gateway.hold(now):
            self._retry(active, now)

    def _retry(self, active: ActiveRequest, now: float) -> None:
        if active.tries < RETRIES:
            self._refused.append((now + RETRY_S, active))

    def _take_again(self, now: float) -> None:
        """Refused requests come again, in the order in which they were refused."""
        due = sum(at <= now for at, _ in self._refused)
        for _, active in self._refused[:due]:
            active.tries += 1
            self._gateway.add(active)
        del self._refused[:due]

    def _remove_finished(self) -> None:
        self._pods = [pod for pod in self._pods if not (pod.draining and not pod.load)]

    def _watch(self, now: float) -> None:
        """Whether every ready pod has a queue that waits, and no pod is on its way that would end this."""
        ready = [pod for pod in self._pods if pod.ready(now)]
        starting = any(now < pod.ready_at for pod in self._pods)
        waits = [now - pod.waiting[0].request.at if pod.waiting else 0.0 for pod in ready]
        if starting or not waits or min(waits) < SATURATED_S or len(ready) >= self._most:
            self._saturated_since = None
        elif self._saturated_since is None:
            self._saturated_since = now - min(waits)

    def _scale(self, wanted: int, now: float) -> None:
        wanted = min(max(wanted, 0), self._most)
        if wanted != self._wanted:
            self.run_.targets.append((now, wanted))
            self._wanted = wanted
        there = [pod for pod in self._pods if not pod.draining]
        if wanted > len(there):
            if self._saturated_since is not None:
                self.run_.delays_s.append(now - self._saturated_since)
                self._saturated_since = None
            self._grow(wanted - len(there), now, ready_at=now + self._profile.cold_start_s)
        for pod in _leaving(there, len(there) - wanted, now):
            for active in pod.handed_back():
                self._gateway.add(active)
        self._remove_finished()

    def _grow(self, count: int, now: float, *, ready_at: float) -> None:
        for _ in range(count):
            self._pods.append(PodModel(self._number, self._profile, created=now, ready_at=ready_at))
            self._number += 1

    def _view(self, now: float) -> FleetView:
        ready = [pod for pod in self._pods if pod.ready(now)]
        return FleetView(
            now=now,
            ready=len(ready),
            starting=sum(now < pod.ready_at and not pod.draining for pod in self._pods),
            wanted=self._wanted,
            readings=tuple((pod.name, pod.state()) for pod in ready),
            draining=tuple((pod.name, pod.state()) for pod in self._pods if pod.draining),
            gateway=self._gateway.demand(),
            cold_starts_s=(self._profile.cold_start_s,) * (len(ready) or int(self._number > 0)),
        )


def _leaving(there: Sequence[PodModel], count: int, now: float) -> list[PodModel]:
    """Those that have not started first, the newest of them; then those with the fewest requests."""
    ranked = sorted(there, key=lambda pod: (now >= pod.ready_at, pod.load if now >= pod.ready_at else -pod.number))
    return ranked[: max(0, count)]
