"""The operator's own metrics, made from their one declaration."""

from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvasir_api import metrics
from kvasir_kube.kinds import Key
from kvasir_operator.scaling.decide import ScalingDecision

SIGNALS: Final = ("kv", "backlog", "prefill")


class Telemetry:
    """Counters, gauges and histograms of metrics.OPERATOR by name, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._families: dict[str, Any] = {m.name: _family(m, self.registry) for m in metrics.OPERATOR}
        self._signals: dict[Key, set[str]] = {}

    def reconciled(self, outcome: str, seconds: float) -> None:
        """A reconcile ended. outcome: ok or error."""
        self._families["kvasir_operator_reconciles_total"].labels(outcome=outcome).inc()
        self._families["kvasir_operator_reconcile_seconds"].observe(seconds)

    def leading(self, leads: bool) -> None:
        """This operator acts, or has ceased to."""
        self._families["kvasir_operator_leading"].set(int(leads))

    def listed(self, age_s: Callable[[], float]) -> None:
        """Where the age of the last complete list is to be had."""
        self._families["kvasir_operator_listed_seconds_ago"].set_function(age_s)

    def watches_ended(self, why: str) -> None:
        """The watches ended and are to be started again. why: stale, failed, forbidden, missing or unauthorized."""
        self._families["kvasir_operator_watch_failures_total"].labels(why=why).inc()

    def wrote(self, kind: str) -> None:
        """An object of that kind was written."""
        self._families["kvasir_operator_writes_total"].labels(kind=kind).inc()

    def replicas(self, service: Key, *, wanted: int, ready: int) -> None:
        """How many there are and ought to be."""
        self._families["kvasir_service_wanted_replicas"].labels(*service).set(wanted)
        self._families["kvasir_service_ready_replicas"].labels(*service).set(ready)

    def decided(self, service: Key, decision: ScalingDecision) -> None:
        """Replicas required by each signal, and whether the number changed."""
        required = (decision.demand.kv, decision.demand.backlog, decision.demand.prefill)
        for signal, replicas in zip(SIGNALS, required, strict=True):
            self._families["kvasir_service_demand_replicas"].labels(*service, signal).set(replicas)
        if decision.changed:
            self._families["kvasir_service_decisions_total"].labels(*service, decision.signal).inc()
            self._signals.setdefault(service, set()).add(decision.signal)

    def forget(self, service: Key) -> None:
        """The service is gone: so are its series."""
        for name in ("kvasir_service_wanted_replicas", "kvasir_service_ready_replicas"):
            self._remove(name, *service)
        for signal in SIGNALS:
            self._remove("kvasir_service_demand_replicas", *service, signal)
        for signal in self._signals.pop(service, ()):
            self._remove("kvasir_service_decisions_total", *service, signal)

    def text(self) -> bytes:
        """Everything in the Prometheus text format."""
        return generate_latest(self.registry)

    def _remove(self, name: str, *values: str) -> None:
        try:
            self._families[name].remove(*values)
        except KeyError:
            return


def _family(metric: metrics.Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=registry)
        case "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=registry)
        case "histogram":
            return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
