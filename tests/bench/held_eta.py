"""How far off the seconds are that held requests are told while all replicas are busy: `python -m bench.held_eta`.

The picker's own code before replicas with bounded queues, in virtual time: the same tree gives the same figures. The
relay reads the announced seconds of each request twice a second. The error of an announcement is its difference from
the time until the replica begins to compute the request, as a fraction of that time.
"""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import log, sqrt
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from fakes.clock import Now
from fakes.gateway import accepted, pod, service, table
from kvasir_api import names
from kvasir_api.state import QueueBounds, RuntimeState
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.hold_queue import HeldRequest, HoldLimits
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.routing_table import StateReading

READING_PERIOD_S: Final = 0.5
RELEASE_PERIOD_S: Final = 0.02
TOLD_AFTER_S: Final = 0.005
"""From the end of a request until the picker knows of it."""
SEEDS: Final = (1, 2, 3)
BODY: Final = json.dumps({"model": "s", "prompt": "x" * 40}).encode()
PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmarks" / "gateway.md"
BEGIN: Final = "## Seconds that held requests are told\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """One service. load: of what its replicas serve; crowd: requests that come at once; mean_s, spread: of the seconds
    that one takes, and their deviation by the mean; leave_fraction: of clients, after five seconds on the mean."""

    name: str
    about: str
    load: float = 2.0
    crowd: int = 0
    replicas: int = 2
    slots: int = 2
    waiting: int = 2
    mean_s: float = 3.0
    spread: float = 0.5
    seconds: float = 60.0
    most_held: int = 64
    leave_fraction: float = 0.0


OVERLOADS: Final = (
    Overload(name="steady", about="twice the load"),
    Overload(name="crowd", about="half the load, and 60 requests at once", load=0.5, crowd=60, seconds=40.0),
    Overload(name="spread", about="answers whose lengths deviate by their mean", spread=1.0),
    Overload(
        name="large",
        about="four replicas of 16 sequences, 1.5 times the load",
        load=1.5,
        replicas=4,
        slots=16,
        waiting=8,
        mean_s=10.0,
        seconds=80.0,
        most_held=128,
    ),
    Overload(name="leaving", about="2.5 times the load, three of ten clients leave", load=2.5, leave_fraction=0.3),
    Overload(name="single", about="one replica of one sequence", replicas=1, slots=1, waiting=1, mean_s=2.0),
)


@dataclass(slots=True)
class BusyReplica:
    """A replica that computes requests in order of arrival, so many at once."""

    overload: Overload
    running: int = 0
    waiting: deque[str] = field(default_factory=deque)

    def state(self) -> RuntimeState:
        """What it reports."""
        bounds = QueueBounds(requests=self.overload.waiting)
        return RuntimeState(
            phase="ready",
            running=self.running,
            waiting=len(self.waiting),
            max_sequences=self.overload.slots,
            queue=bounds,
        )


class OverloadRun:
    """One run in virtual time. errors: of all seconds that were told; untold: how often none were known."""

    def __init__(self, overload: Overload, seed: int) -> None:
        self._overload, self._random, self._clock = overload, Random(seed), Now()
        self._clock.now = 0.0
        self._picker = _picker(overload, self._clock, self._random)
        self._replicas = {endpoint.address: BusyReplica(overload) for endpoint in self._picker.table.endpoints()}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._left = count(), 0
        self._held: dict[str, HeldRequest] = {}
        self._told: dict[str, list[tuple[float, float]]] = {}
        self._began: dict[str, float] = {}
        self.untold = 0
        arrivals, end = overload.replicas * overload.slots / overload.mean_s * overload.load, overload.seconds
        at = 0.0
        while (at := at + self._random.expovariate(arrivals)) < end:
            self._come(at)
        for _ in range(overload.crowd):
            self._come(1.0)
        for loop in (self._read, self._release, self._tell):
            self._at(0.0, loop)

    def run(self) -> list[float]:
        """Until all requests have ended; the errors."""
        while self._left:
            self._clock.now, _, happens = heappop(self._events)
            happens()
        return [
            abs(eta_s - real_s) / real_s
            for name, told in self._told.items()
            for at, eta_s in told
            if name in self._began and (real_s := self._began[name] - at) > 0
        ]

    def _at(self, at: float, happens: Callable[[], None]) -> None:
        heappush(self._events, (at, next(self._order), happens))

    def _later(self, seconds: float, happens: Callable[[], None]) -> None:
        self._at(self._clock.now + seconds, happens)

    def _come(self, at: float) -> None:
        name = str(self._left)
        self._left += 1
        self._at(at, lambda: self._pick(name))

    def _pick(self, name: str) -> None:
        outcome = self._picker.pick(BODY, name, "/v1/completions", {names.HEADER_RELAYED: name})
        if not isinstance(outcome, HeldRequest):
            self._go(name, outcome)
            return
        self._held[name] = outcome
        if self._random.random() < self._overload.leave_fraction:
            self._later(self._random.expovariate(1 / 5), lambda: self._leave(name))

    def _leave(self, name: str) -> None:
        if held := self._held.pop(name, None):
            self._picker.stop_waiting(held)
            self._left -= 1

    def _go(self, name: str, outcome: Any) -> None:
        self._held.pop(name, None)
        if not isinstance(outcome, Destination):
            self._left -= 1
            return
        replica = self._replicas[outcome.addresses[0]]
        replica.waiting.append(name)
        self._compute(replica)

    def _compute(self, replica: BusyReplica) -> None:
        while replica.waiting and replica.running < self._overload.slots:
            replica.running += 1
            name = replica.waiting.popleft()
            self._began[name] = self._clock.now
            self._later(self._seconds(), lambda name=name: self._end(replica, name))  # type: ignore[misc]

    def _end(self, replica: BusyReplica, name: str) -> None:
        replica.running -= 1
        self._left -= 1
        self._compute(replica)
        self._later(TOLD_AFTER_S, lambda: self._picker.request_ended(name, status=200, client_left=False))

    def _seconds(self) -> float:
        sigma = sqrt(log(1 + self._overload.spread**2))
        return self._random.lognormvariate(log(self._overload.mean_s) - sigma * sigma / 2, sigma)

    def _read(self) -> None:
        now, states = self._clock.now, {address: replica.state() for address, replica in self._replicas.items()}
        self._picker.router.take_readings(states, began_s=now)
        self._picker.readings = {address: StateReading(state=state, at_s=now) for address, state in states.items()}
        self._later(READING_PERIOD_S, self._read)

    def _release(self) -> None:
        for name, outcome in self._picker.release():
            self._go(name, outcome)
        self._later(RELEASE_PERIOD_S, self._release)

    def _tell(self) -> None:
        for name, place in self._picker.places().items():
            if place.eta_s is None:
                self.untold += 1
            else:
                self._told.setdefault(name, []).append((self._clock.now, place.eta_s))
        self._later(READING_PERIOD_S, self._tell)


def _picker(overload: Overload, clock: Now, random: Random) -> Picker:
    picker = Picker(
        metrics=GatewayMetrics(),
        clock=clock,
        draw=lambda: random.randrange(1 << 30),
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=len(BODY), timeout_s=3600.0),
        limits=HoldLimits(max_requests=overload.most_held, max_wait_s=3600.0),
    )
    pods = [pod("s", f"pod-{number}", ip=f"10.0.0.{number}") for number in range(1, overload.replicas + 1)]
    picker.table = table([service("s")], pods)
    picker.accepted_clusters = accepted(picker.table)
    return picker


def error_p50(overload: Overload, seed: int) -> float:
    """The median error of one run."""
    return round(median(OverloadRun(overload, seed).run()), 3)


def page() -> str:
    """The section of docs/benchmarks/gateway.md."""
    rows = [(overload, [error_p50(overload, seed) for seed in SEEDS]) for overload in OVERLOADS]
    lines = [f"| {overload.name} | {overload.about} | {' | '.join(map(str, found))} |" for overload, found in rows]
    middle = median([error for _, found in rows for error in found])
    head = "".join(f" seed {seed} |" for seed in SEEDS)
    return f"""{BEGIN}
While all replicas are busy the gateway announces to each stream the seconds until a replica computes it (`eta_s`,
[busy replicas](../gateway.md#busy-replicas)). `PYTHONPATH=tests python -m bench.held_eta` runs the picker's own code
before replicas with bounded queues in virtual time. Median of how far off each announcement was, as a fraction of what
was left; over all runs {middle:.2f} (goal 0.20). What is known is how fast others went. Where few answers run at once
and their lengths are far apart (`spread`: four at once), the next ones take another time than the last, and a run may
be off by twice the goal; predictions by half as many or twice as many turns are off by as much:

| overload | |{head}
| --- | --- |{" --- |" * len(SEEDS)}
{chr(10).join(lines)}
"""


def main() -> None:
    """Write the section into the page."""
    text = PAGE.read_text().partition(BEGIN)[0].rstrip("\n")
    PAGE.write_text(f"{text}\n\n{page()}")


if __name__ == "__main__":
    main()
