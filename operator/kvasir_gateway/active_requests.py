"""Compares the requests that the picker counts with those that Envoy has, once a second; pure.

Envoy has more after the picker was started again: streams that an earlier one chose for go on. The picker counts more
where the end of a request was lost, as while it did not take Envoy's log. Both are known by counts alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

SETTLED_S = 10.0
"""A request that was forwarded so long ago is in Envoy's count, or it is over: connections and tries take less."""
LOST_AFTER = 10
"""Comparisons in a row in which an end must be missing before it counts as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceActivity:
    """One service in one comparison: active requests in Envoy, counted by the picker, and of those the settled ones."""

    active: int
    counted: int
    settled: int


@dataclass(slots=True)
class ActiveRequests:
    """inherited: by service, the requests that Envoy has and the picker does not count, as of the last comparison."""

    inherited: Mapping[str, int] = field(default_factory=dict)
    _last_more: dict[str, int] = field(default_factory=dict)
    _missing: dict[str, list[int]] = field(default_factory=dict)

    def compare(self, services: Mapping[str, ServiceActivity]) -> dict[str, int]:
        """One comparison. Returns by service how many of the oldest counted requests are over, their ends lost.

        What Envoy has more is believed where the last comparison had it too: an end may be counted in between.
        """
        more = {name: max(0, seen.active - seen.counted) for name, seen in services.items()}
        self.inherited = {name: min(count, self._last_more.get(name, count)) for name, count in more.items() if count}
        self._last_more = more
        missing = {name: seen.settled - seen.active for name, seen in services.items() if seen.settled > seen.active}
        self._missing = {name: [*self._missing.get(name, ()), count] for name, count in missing.items()}
        lost = {name: min(counts) for name, counts in self._missing.items() if len(counts) >= LOST_AFTER}
        for name in lost:
            del self._missing[name]
        return lost
