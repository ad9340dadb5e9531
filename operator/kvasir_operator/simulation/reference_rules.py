"""Rules that know what an autoscaler has to measure or to guess: what is attainable, beside which others are judged.

`oracle` knows the whole load beforehand; `present` knows the load of the moment, without measuring it, and starts as
many pods as there may be, whatever they cost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final

from kvasir_operator.simulation.fleet import FleetView, ScalingRule
from kvasir_operator.simulation.scenarios import Scenario

REFERENCES: Final = ("oracle", "present")


@dataclass(slots=True)
class OracleRule:
    """Creates each pod a start before it is needed, and removes it when it is needed no more."""

    need: Callable[[float], int]
    cold_start_s: float
    name: str = "oracle"
    period_s: float = 2.0

    def wanted(self, view: FleetView) -> int:
        """The largest need until a pod created now, or at the next call, is ready."""
        steps = ceil(self.cold_start_s / self.period_s) + 2
        return max(self.need(view.now + self.period_s * i) for i in range(steps))


@dataclass(slots=True)
class PresentRule:
    """Knows the load of this moment exactly. Where it needs more pods than are ready it starts as many as there may be,
    and they stay while any request waits."""

    need: Callable[[float], int]
    most: int
    name: str = "present"
    period_s: float = 2.0

    def wanted(self, view: FleetView) -> int:
        """The most, while something is missing; otherwise what is needed."""
        now = self.need(view.now)
        waiting = view.held + sum(reading.waiting for _, reading in view.readings)
        return self.most if now > view.ready or waiting else now


def references(scenario: Scenario) -> list[ScalingRule]:
    """All of them, fresh."""
    return [
        OracleRule(need=scenario.need, cold_start_s=scenario.profile.cold_start_s),
        PresentRule(need=scenario.need, most=scenario.most),
    ]
