"""A model of what a gateway holds: requests for which no pod has room wait in order of arrival, up to bounds.

It counts as a gateway does, so that the autoscaler reads it as it reads a real one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvasir_api.state import ServiceDemand
from kvasir_operator.simulation.pod_model import ActiveRequest

BYTES_PER_PROMPT = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldProfile:
    """Bounds of a gateway's queue. max_wait_s: of one request."""

    max_requests: int
    max_wait_s: float = 300.0


class HoldModel:
    """profile: None for a gateway that holds all requests while there is no pod, and none while there is one."""

    def __init__(self, profile: HoldProfile | None) -> None:
        self._profile = profile
        self._held: list[tuple[float, ActiveRequest]] = []
        self._coming: list[ActiveRequest] = []
        self._shed = self._expired = self._retried = 0

    def add(self, active: ActiveRequest) -> None:
        """A request comes, or comes again."""
        self._coming.append(active)

    @property
    def waits_for_room(self) -> bool:
        """Whether requests wait while pods are busy."""
        return self._profile is not None

    def forward(self, send: Callable[[ActiveRequest, bool], bool]) -> None:
        """Requests go, the oldest first, until one does not. send: with whether it was held."""
        waiting = [*((active, True) for _, active in self._held), *((active, False) for active in self._coming)]
        gone = next((i for i, (active, held) in enumerate(waiting) if not send(active, held)), len(waiting))
        self._coming = self._coming[max(0, gone - len(self._held)) :]
        self._held = self._held[gone:]

    def hold(self, now: float) -> list[ActiveRequest]:
        """Those that came wait. Returns those that have waited for too long, and those for which there is no place."""
        coming, self._coming = self._coming, []
        if self._profile is None:
            self._held += [(now, active) for active in coming]
            return []
        since = now - self._profile.max_wait_s
        expired = [active for at, active in self._held if at <= since]
        self._held = [(at, active) for at, active in self._held if at > since]
        places = self._profile.max_requests - len(self._held)
        self._held += [(now, active) for active in coming[:places]]
        self._expired += len(expired)
        self._retried += sum(active.tries > 0 for active in coming[:places])
        self._shed += sum(not active.tries for active in coming[places:])
        return [*expired, *coming[places:]]

    def demand(self) -> ServiceDemand:
        """What a gateway would report."""
        return ServiceDemand(
            namespace="default",
            name="simulated",
            gateway="gateway",
            held=len(self._held),
            held_bytes=len(self._held) * BYTES_PER_PROMPT,
            shed=self._shed,
            expired=self._expired,
            held_retried=self._retried,
        )
