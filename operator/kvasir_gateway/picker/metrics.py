"""The gateway's metrics, made from their one declaration."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from kvasir_api.control_plane_metrics import GATEWAY
from kvasir_api.metric import Metric
from kvasir_api.model_route import Unavailability
from kvasir_gateway.hold_queue import HoldQueue
from kvasir_gateway.inflight import InflightRequests
from kvasir_gateway.routing_table import RoutingTable

REASONS_OF_FALLBACKS: Final[dict[Unavailability, str]] = {
    "Stalled": "stalled",
    "AtZero": "at_zero",
    "Saturated": "saturated",
}


def outcome(status: int, *, client_left: bool, is_cut: bool = False) -> str:
    """One word for how a forwarded request ended. Status 0 means that no answer began. is_cut: one began, whose end is
    missing."""
    if client_left:
        return "aborted"
    if status == 0 or status >= 500 or is_cut:
        return "server_error"
    return "client_error" if status >= 400 else "ok"


def _made(metric: Metric, registry: CollectorRegistry) -> MetricWrapperBase:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=registry)
        case "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=registry)
        case "histogram":
            return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)


class GatewayMetrics:
    """Counters that the picker increments, and gauges that are set at each scrape."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        made = {metric.name: _made(metric, self._registry) for metric in GATEWAY}
        requests, inflight = made["kvasir_gateway_requests_total"], made["kvasir_gateway_inflight_requests"]
        endpoints, choices = made["kvasir_gateway_endpoints"], made["kvasir_gateway_choices_total"]
        choice_seconds, hold_seconds = made["kvasir_gateway_choice_seconds"], made["kvasir_gateway_hold_seconds"]
        held, routed = made["kvasir_gateway_held_requests"], made["kvasir_gateway_routed_requests_total"]
        assert isinstance(requests, Counter)
        assert isinstance(inflight, Gauge)
        assert isinstance(endpoints, Gauge)
        assert isinstance(choices, Counter)
        assert isinstance(choice_seconds, Histogram)
        assert isinstance(hold_seconds, Histogram)
        assert isinstance(held, Gauge)
        assert isinstance(routed, Counter)
        self._requests, self._inflight, self._endpoints = requests, inflight, endpoints
        self._choices, self._choice_seconds = choices, choice_seconds
        self._hold_seconds, self._held, self._routed = hold_seconds, held, routed

    def observe_choice(self, service: str, reason: str, seconds: float) -> None:
        """Record why an endpoint of a service (its key) was chosen and how long that took."""
        namespace, _, name = service.partition(".")
        self._choices.labels(namespace=namespace, service=name, reason=reason).inc()
        self._choice_seconds.observe(seconds)

    def count_routed(self, route: str, service: str, fallback: Unavailability | None) -> None:
        """Count a request that a route (NAMESPACE.NAME) sent to a service. fallback: why not to its target."""
        namespace, _, name = route.partition(".")
        why = REASONS_OF_FALLBACKS[fallback] if fallback else "target"
        self._routed.labels(namespace=namespace, route=name, service=service, reason=why).inc()

    def observe_hold(self, service: str, outcome: str, seconds: float) -> None:
        """Record how long a request of a service (its key) was held, and how that ended."""
        namespace, _, name = service.partition(".")
        self._hold_seconds.labels(namespace=namespace, service=name, outcome=outcome).observe(seconds)

    def count_request(self, service: str, outcome: str) -> None:
        """Count a request of a service (its key) that ended."""
        namespace, _, name = service.partition(".")
        self._requests.labels(namespace=namespace, service=name, outcome=outcome).inc()

    def render(self, table: RoutingTable, inflight: InflightRequests, held: HoldQueue) -> bytes:
        """The metrics page. Gauges are cleared first, so that a deleted service leaves none behind."""
        self._inflight.clear()
        self._endpoints.clear()
        self._held.clear()
        for service in table.services:
            labels = {"namespace": service.namespace, "service": service.name}
            self._inflight.labels(**labels).set(inflight.counts(service.key).inflight)
            self._held.labels(**labels).set(held.num_requests(service.key))
            ready = len(service.ready)
            self._endpoints.labels(**labels, state="ready").set(ready)
            self._endpoints.labels(**labels, state="not_ready").set(len(service.endpoints) - ready)
        return generate_latest(self._registry)
