"""Holds the routing state and decides one request at a time; the servers and loops around it only carry messages.

Clock and randomness arrive through the constructor. Runs in one event loop, so it needs no lock.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvasir_api import http_apis, openai_errors, served_names
from kvasir_api.state import GatewayState, ServiceDemand
from kvasir_gateway import routing_table
from kvasir_gateway.active_requests import SETTLED_S, ActiveRequests, ServiceActivity
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.inflight import InflightRequest
from kvasir_gateway.picker import request_parser
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.request_parser import ImmediateResponse
from kvasir_gateway.picker.request_prefix import RequestPrefix
from kvasir_gateway.router import EndpointRouter, RoutedRequest
from kvasir_gateway.routing_table import RoutedService, RoutingTable, StateReading

RETRY_AFTER_S = 2.0
"""Retry-After when no replica is ready: about one period of readings and readiness probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a request goes: a cluster of Envoy and addresses in it, best first."""

    cluster: str
    addresses: tuple[str, ...]


class Picker:
    """The state of the picker and its one decision.

    clock: monotonic seconds. draw: a non-negative random number for ties.
    """

    def __init__(
        self,
        *,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        draw: Callable[[], int],
        policy: ChoicePolicy,
        max_body_bytes: int,
    ) -> None:
        self.table: RoutingTable = routing_table.EMPTY
        self.accepted_clusters: frozenset[str] = frozenset()
        self.readings: dict[str, StateReading] = {}
        self.router = EndpointRouter(policy=policy, draw=draw)
        self.inflight = self.router.inflight
        self._active = ActiveRequests()
        self._metrics = metrics
        self._clock = clock
        self._max_body_bytes = max_body_bytes

    def respond_to_head(self, method: str, target: str, headers: Mapping[str, str]) -> ImmediateResponse | None:
        """The answer to a request's head; None when its body is needed."""
        path = target.partition("?")[0]
        return request_parser.respond_to_head(
            method, path, headers, table=self.table, max_body_bytes=self._max_body_bytes
        )

    def pick(
        self, body: bytes, inflight_id: str, target: str = "", headers: Mapping[str, str] | None = None
    ) -> Destination | ImmediateResponse:
        """Resolve the model, choose endpoints and count the request as in flight; or the error that answers it.

        A request about something that one pod holds goes to that pod: a stored response or a running answer that the
        path names, or the conversation of a response. headers: of the client, names in lower case.
        """
        started_s = self._clock()
        path = target.partition("?")[0]
        response_id, chat_id = http_apis.stored_response_id(path), http_apis.running_chat_id(path)
        if response_id:
            return self._pick_holder(response_id, openai_errors.response_not_found(response_id), inflight_id, path)
        if chat_id:
            return self._pick_holder(chat_id, openai_errors.answer_not_running(chat_id), inflight_id, path)
        parsed = request_parser.parse_body(body, path)
        if not isinstance(parsed, request_parser.ParsedBody):
            return request_parser.error_response(parsed, path)
        service = request_parser.service_of(parsed, self.table)
        if not isinstance(service, RoutedService):
            return request_parser.error_response(service, path)
        self._count_arrival(service, started_s)
        prefix = RequestPrefix(parsed, path, headers or {}, body_bytes=len(body))
        routed = None
        if service.key in self.accepted_clusters:  # else Envoy does not know its cluster yet
            routed = self.router.choose(service, prefix, self.readings, now_s=started_s)
        if routed is None:
            self.inflight.counts(service.key).refused += 1
            self._metrics.count_request(service.key, "refused")
            return request_parser.error_response(_nothing_ready(service), path)
        holder = self._holder(parsed.response, (service,)) if parsed.response else None
        addresses, reason = routed.choice.addresses, str(routed.choice.reason)
        if holder is not None:
            routed, addresses, reason = None, (holder[1],), "holder"
        self._metrics.observe_choice(service.key, reason, self._clock() - started_s)
        return self._forward(service, addresses, inflight_id, routed, started_s)

    def _pick_holder(
        self, held_id: str, missing: openai_errors.ApiError, inflight_id: str, path: str
    ) -> Destination | ImmediateResponse:
        holder = self._holder(held_id, self.table.services)
        if holder is None:
            return request_parser.error_response(missing, path)
        service, address = holder
        now_s = self._clock()
        self._count_arrival(service, now_s)
        return self._forward(service, (address,), inflight_id, None, now_s)

    def _count_arrival(self, service: RoutedService, now_s: float) -> None:
        count = self.inflight.counts(service.key)
        count.requests += 1
        count.last_request_s = now_s

    def _holder(self, held_id: str, among: Iterable[RoutedService]) -> tuple[RoutedService, str] | None:
        """Which of these services, and which address, hold a response or a running answer; None when they cannot be
        reached. An instance is a pod's own word, and clients know it: the id's service is compared as well."""
        instance = http_apis.instance_of(held_id)
        for service in among:
            for endpoint in service.reachable if service.key in self.accepted_clusters else ():
                reading = self.readings.get(endpoint.address)
                if not instance or reading is None or reading.state.instance != instance:
                    continue
                if http_apis.is_instance_of(instance, served_names.qualified_name(service.namespace, service.name)):
                    return service, endpoint.address
        return None

    def _forward(
        self,
        service: RoutedService,
        addresses: tuple[str, ...],
        inflight_id: str,
        routed: RoutedRequest | None,
        now_s: float,
    ) -> Destination:
        self.router.forward(inflight_id, service, addresses[0], routed, now_s=now_s)
        return Destination(cluster=service.key, addresses=addresses)

    def request_ended(self, inflight_id: str, *, status: int, client_left: bool) -> None:
        """Envoy has logged the end of a request."""
        request = self.router.ended(inflight_id, now_s=self._clock())
        if request is not None:
            self._metrics.count_request(request.service, outcome(status, client_left=client_left))

    def envoy_restarted(self, *, before_s: float) -> int:
        """A new Envoy runs, started at before_s. Returns how many requests broke with the previous one."""
        broken = self.router.broken(before_s=before_s, now_s=self._clock())
        self._count_broken(broken)
        return len(broken)

    def observe_active(self, active: Mapping[str, int]) -> int:
        """Envoy has so many requests of each service. Returns how many ends of requests were lost, as far as known."""
        settled_s = self._clock() - SETTLED_S
        settled = self.inflight.settled(settled_s)
        lost = self._active.compare(
            {
                service.key: ServiceActivity(
                    active=active.get(service.key, 0),
                    counted=self.inflight.counts(service.key).inflight,
                    settled=settled.get(service.key, 0),
                )
                for service in self.table.services
            }
        )
        for service, count in lost.items():
            self._count_broken(self.router.lost(service, count, now_s=self._clock()))
        return sum(lost.values())

    def _count_broken(self, requests: list[InflightRequest]) -> None:
        for request in requests:
            self._metrics.count_request(request.service, outcome(0, client_left=False))

    def state(self) -> GatewayState:
        """The document that the autoscaler reads."""
        now_s = self._clock()
        return GatewayState(services=tuple(self._demand(service, now_s) for service in self.table.services))

    def _demand(self, service: RoutedService, now_s: float) -> ServiceDemand:
        count = self.inflight.counts(service.key)
        return ServiceDemand(
            namespace=service.namespace,
            name=service.name,
            inflight=count.inflight + self._active.inherited.get(service.key, 0),
            requests=count.requests,
            refused=count.refused,
            last_request_age_s=-1.0 if count.last_request_s is None else now_s - count.last_request_s,
        )


def outcome(status: int, *, client_left: bool) -> str:
    """One word for how a forwarded request ended. Status 0 means that no answer began."""
    if client_left:
        return "aborted"
    if status == 0 or status >= 500:
        return "server_error"
    return "client_error" if status >= 400 else "ok"


def _nothing_ready(service: RoutedService) -> openai_errors.ApiError:
    pods = len(service.endpoints)
    there = f"{pods} of its replicas are starting or draining" if pods else "it has no replica"
    return openai_errors.unavailable(
        f"The model {openai_errors.quoted(service.model)} is not ready: {there}. Try again later.",
        retry_after_s=RETRY_AFTER_S,
        code="no_ready_replica",
    )
