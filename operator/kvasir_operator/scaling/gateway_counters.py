"""What gateways counted of requests for which they had neither a replica with room nor a place to wait.

Counters become differences here, as those of pods do in `window.py`, which calls this at each tick: a gateway that was
not known before counts from its first reading on, and a picker that restarted from zero.
"""

from collections.abc import Container, Iterable, Mapping
from operator import add
from typing import Final, NamedTuple

from kvasir_api.state import ServiceDemand
from kvasir_operator.scaling.load_counts import LoadCounts
from kvasir_operator.scaling.plausibility import demand_contradiction, demand_leap, gateway_restarted


class GatewayReading(NamedTuple):
    """The last document of one gateway about one service that was new then, and when it was taken."""

    at: float
    demand: ServiceDemand


class QueueCounts(NamedTuple):
    """Within a tick, as fractions after a gap. shed, expired, abandoned, held_retried: as of ServiceDemand."""

    shed: float = 0.0
    expired: float = 0.0
    abandoned: float = 0.0
    held_retried: float = 0.0

    @property
    def left(self) -> float:
        """Held requests that no replica of the service got."""
        return self.expired + self.abandoned

    def counted(self, counts: LoadCounts, *, was_counted: bool) -> LoadCounts:
        """The counts of a tick with these. was_counted: what a gateway holds is part of the rate since it came, so that
        its end is no other request; else it never is."""
        if not was_counted:
            return counts._replace(refused=counts.refused + self.shed)
        refused = counts.refused + self.shed + self.expired - self.held_retried
        return counts._replace(refused=refused, released=counts.released + self.expired)


NOTHING: Final = QueueCounts()
Readings = Mapping[str, GatewayReading]


def believed(
    before: Readings, gateways: Iterable[ServiceDemand], *, now: float
) -> tuple[list[ServiceDemand], tuple[tuple[str, str], ...]]:
    """What gateways say that may be true; and what cannot be, by itself or beside the reading before, for a person."""
    asked = [(demand, _contradiction(before.get(demand.gateway), demand, now)) for demand in gateways]
    wrong = tuple([(demand.gateway or "a gateway", said) for demand, said in asked if said])
    return [demand for demand, said in asked if not said], wrong


def readings(
    before: Readings, gateways: Iterable[ServiceDemand], *, silent: Container[str], now: float
) -> dict[str, GatewayReading]:
    """The readings to compare the next ones with. silent: gateways whose documents are old ones. Counters that leapt
    count on from where they are."""
    found = {}
    for demand in gateways:
        known = before.get(demand.gateway)
        if known is not None and demand.gateway in silent:
            found[demand.gateway] = known
        elif demand.gateway and not demand_contradiction(demand):
            found[demand.gateway] = GatewayReading(now, demand)
    return found


def counted(before: Readings, after: Readings, believed_in: Iterable[ServiceDemand], *, span_s: float) -> QueueCounts:
    """What gateways counted since their readings before. span_s: of the tick; what was counted over a longer gap enters
    at its mean rate."""
    found = NOTHING
    for demand in believed_in:
        known, new = before.get(demand.gateway), after.get(demand.gateway)
        if known is None or new is None or new.at <= known.at:
            continue
        old = NOTHING if gateway_restarted(known.demand, demand) else _counters(known.demand)
        more = [now - then for now, then in zip(_counters(demand), old, strict=True)]
        if any(more):
            share = min(1.0, span_s / (new.at - known.at))
            found = QueueCounts._make(map(add, found, [share * number for number in more]))
    return found


def _counters(demand: ServiceDemand) -> QueueCounts:
    return QueueCounts(demand.shed, demand.expired, demand.abandoned, demand.held_retried)


def _contradiction(known: GatewayReading | None, demand: ServiceDemand, now: float) -> str:
    said = demand_contradiction(demand)
    return said if said or known is None else demand_leap(known.demand, demand, now - known.at)
