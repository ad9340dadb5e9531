"""How requests of the relay wait: their places, how far the first replica is, and when it probably takes them; pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from kvasir_gateway.held_places import WAIT_PHASES, HeldPlace, HeldPlaces, WaitPhase
from kvasir_gateway.hold_queue import HoldQueue
from kvasir_gateway.picker.destination import RoutableRequest
from kvasir_gateway.routing_table import RoutedService, StateReading
from kvasir_gateway.wake_forecast import TurnForecast, WakeForecast

PHASE_OF_STATE: Final[Mapping[str, WaitPhase]] = {
    "starting": "weights",
    "loading": "weights",
    "warming": "warm",
    "ready": "warm",
}
"""Of a replica that does not take requests yet."""
MOST_WAITING: Final = 100_000
"""Of one replica, whatever it reports."""


def waiting_places(
    services: Iterable[RoutedService],
    held: HoldQueue,
    waiting: Mapping[str, RoutableRequest],
    readings: Mapping[str, StateReading],
    *,
    wakes: WakeForecast,
    turns: TurnForecast,
    now_s: float,
) -> HeldPlaces:
    """Places by the ids that requests have at the relay. waiting: the held requests by their ids. wakes, turns: forget
    services for which nothing waits any more."""
    found: HeldPlaces = {}
    keys = set()
    for service in services:
        keys.add(service.key)
        count = held.num_requests(service.key)
        if not count:
            wakes.end(service.key, now_s, woken=False)
            continue
        phase, reported_s = wait_phase(service, readings)
        ahead = waiting_at_replicas(service, readings) if phase == "queue" else 0
        eta_s = wakes.eta_s(service.key, now_s, cold_start_s=service.cold_start_s, reported_s=reported_s)
        for place, one in enumerate(held.in_order(service.key), 1):
            if relayed := waiting[one.id].relayed:
                if phase == "queue":
                    eta_s = turns.eta_s(service.key, place + ahead, now_s)
                found[relayed] = HeldPlace(place=place, of=count, phase=phase, eta_s=eta_s)
    wakes.keep(frozenset(keys))
    turns.keep(held.services())
    return found


def waiting_at_replicas(service: RoutedService, readings: Mapping[str, StateReading]) -> int:
    """Requests in the queues of a service's replicas, by their own word."""
    found = [readings[endpoint.address].state.waiting for endpoint in service.ready if endpoint.address in readings]
    return sum(min(MOST_WAITING, max(0, waiting)) for waiting in found)


def wait_phase(service: RoutedService, readings: Mapping[str, StateReading]) -> tuple[WaitPhase, float]:
    """What the replica that is furthest on its way does, and in how many seconds it will have its weights by its own
    word, -1 where it does not know."""
    found: list[tuple[int, float]] = [(WAIT_PHASES.index(phase), -1.0) for phase in ("scale", *service.unaddressed)]
    for endpoint in service.endpoints:
        reading = readings.get(endpoint.address)
        phase = PHASE_OF_STATE.get(reading.state.phase) if reading else "image"
        if endpoint.takes_requests and phase is not None:
            phase = "queue"
        if phase is not None:
            found.append((WAIT_PHASES.index(phase), reading.state.eta_s if reading and phase == "weights" else -1.0))
    furthest, eta_s = max(found, key=lambda one: (one[0], -one[1]))
    return WAIT_PHASES[furthest], eta_s
