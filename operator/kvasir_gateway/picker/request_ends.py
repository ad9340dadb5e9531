"""How forwarded requests end: by Envoy's log, with the Envoy that had them, or unseen.

Called in the picker's event loop. Requests of other proxies are told apart: neither our Envoy's log nor its counts have
them, and the stream of each shows its end.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final

from kvasir_gateway.active_requests import ActiveRequests
from kvasir_gateway.inflight import InflightRequest
from kvasir_gateway.picker.gateway_state import service_activity
from kvasir_gateway.picker.metrics import GatewayMetrics, outcome
from kvasir_gateway.picker.tenant_gate import TenantGate
from kvasir_gateway.placements import PlacementEnd, PlacementEvent
from kvasir_gateway.router import EndpointRouter
from kvasir_gateway.routing_table import RoutingTable

MOST_AT_RELAY: Final = 65_536
BROKEN: Final = outcome(0, client_left=False)


class RequestEnds:
    """clock: monotonic seconds. publish: sends to the other gateways that a request has ended. forget: of what else is
    kept of it, by its id."""

    def __init__(
        self,
        router: EndpointRouter,
        tenants: TenantGate,
        metrics: GatewayMetrics,
        *,
        publish: Callable[[PlacementEvent], None],
        clock: Callable[[], float],
        forget: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._forget = forget
        self._router, self._tenants, self._metrics = router, tenants, metrics
        self._publish, self._clock = publish, clock
        self._active, self._elsewhere = ActiveRequests(), dict[str, str]()
        self._at_relay: dict[str, tuple[str, bool]] = {}

    @property
    def inherited(self) -> Mapping[str, int]:
        """By service, the requests that Envoy has and the picker does not count."""
        return self._active.inherited

    def expect_elsewhere(self, inflight_id: str, service: str) -> None:
        """A request goes by a proxy of others, whose stream shows its end. service: its key."""
        self._elsewhere[inflight_id] = service

    def goes_to_relay(self, inflight_id: str, service: str, *, is_retry: bool) -> None:
        """A request goes to the relay, which sends it again or has no memory for it. service: its key. is_retry: it is
        no further request of the service."""
        self._at_relay[inflight_id] = service, is_retry
        if len(self._at_relay) > MOST_AT_RELAY:  # ends of so many were lost
            del self._at_relay[next(iter(self._at_relay))]

    def comes_from_relay(self, inflight_id: str) -> None:
        """The relay has sent it again. inflight_id: with which it came first."""
        self._at_relay.pop(inflight_id, None)

    def ended(self, inflight_id: str, *, status: int, client_left: bool, is_cut: bool, address: str) -> None:
        """By the log of Envoy, or the stream of another proxy. address: of the replica that had it, "" for none."""
        ending = outcome(status, client_left=client_left, is_cut=is_cut)
        self._elsewhere.pop(inflight_id, None)
        service, is_retry = self._at_relay.pop(inflight_id, ("", False))
        if service and status == HTTPStatus.TOO_MANY_REQUESTS:  # the relay's own: it was sent on to no replica
            self._router.inflight.counts(service).shed += not is_retry
        self._forget(inflight_id)
        self._tenants.ended(inflight_id)
        self._tenants.audit.ended(inflight_id, status=status, outcome=ending, address=address)
        request = self._router.ended(inflight_id, now_s=self._clock())
        if request is not None:
            self._publish(PlacementEnd(id=inflight_id))
            self._metrics.count_request(request.service, ending)

    def referred(self, inflight_id: str) -> None:
        """Its replica has sent a request back, which goes on."""
        if self._router.inflight.has(inflight_id) and self._router.ended(inflight_id, now_s=self._clock()):
            self._publish(PlacementEnd(id=inflight_id))

    def envoy_restarted(self, *, before_s: float) -> int:
        """A new Envoy runs, started at before_s. Returns how many requests broke with the previous one."""
        broken = self._router.broken(before_s=before_s, now_s=self._clock(), keep=self._elsewhere)
        self._tenants.ended_before(before_s, keep=self._elsewhere)
        self._count_broken(broken)
        return len(broken)

    def observe_active(self, active: Mapping[str, int], table: RoutingTable) -> int:
        """Envoy has so many requests of each service. Returns how many ends of requests were lost, as far as known."""
        seen = Counter(self._elsewhere.values()) + Counter(active)  # other proxies have theirs
        activity = service_activity(table, self._router.inflight, seen, now_s=self._clock())
        lost = self._active.compare(activity)
        for service, count in lost.items():
            self._count_broken(self._router.lost(service, count, now_s=self._clock(), keep=self._elsewhere))
        return sum(lost.values())

    def _count_broken(self, requests: Iterable[InflightRequest]) -> None:
        for request in requests:
            self._forget(request.id)
            self._tenants.ended(request.id)
            self._tenants.audit.ended(request.id, status=0, outcome=BROKEN)
            self._publish(PlacementEnd(id=request.id))
            self._metrics.count_request(request.service, BROKEN)
