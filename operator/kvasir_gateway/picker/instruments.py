"""The gateway's metrics, made from their one declaration."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from kvasir_api.metrics import GATEWAY, Metric
from kvasir_gateway.table import Table
from kvasir_gateway.tickets import Tickets


def _made(metric: Metric, registry: CollectorRegistry) -> MetricWrapperBase:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=registry)
        case "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=registry)
        case "histogram":
            return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)


class Instruments:
    """Counters that the picker turns, and gauges that are set when somebody looks."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        made = {metric.name: _made(metric, self._registry) for metric in GATEWAY}
        requests, inflight = made["kvasir_gateway_requests_total"], made["kvasir_gateway_inflight_requests"]
        endpoints, choice = made["kvasir_gateway_endpoints"], made["kvasir_gateway_choice_seconds"]
        assert isinstance(requests, Counter)
        assert isinstance(inflight, Gauge)
        assert isinstance(endpoints, Gauge)
        assert isinstance(choice, Histogram)
        self._requests, self._inflight, self._endpoints, self._choice = requests, inflight, endpoints, choice

    def chosen(self, seconds: float) -> None:
        """A choice was made in so long."""
        self._choice.observe(seconds)

    def ended(self, service: str, outcome: str) -> None:
        """A request of a service, named by its key, ended."""
        namespace, _, name = service.partition(".")
        self._requests.labels(namespace=namespace, service=name, outcome=outcome).inc()

    def text(self, table: Table, tickets: Tickets) -> bytes:
        """The metrics page. Gauges are written anew, so that a deleted service leaves none behind."""
        self._inflight.clear()
        self._endpoints.clear()
        for service in table.services:
            labels = {"namespace": service.namespace, "service": service.name}
            self._inflight.labels(**labels).set(tickets.count(service.key).inflight)
            ready = len(service.ready)
            self._endpoints.labels(**labels, state="ready").set(ready)
            self._endpoints.labels(**labels, state="not_ready").set(len(service.endpoints) - ready)
        return generate_latest(self._registry)
