"""The operator's own metrics, made from their one declaration."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvasir_api.control_plane_metrics import OPERATOR
from kvasir_api.metric import Metric
from kvasir_kube.kinds import Key
from kvasir_operator.loop.decision_metrics import OF_A_DECISION, DecisionMetrics
from kvasir_operator.scaling.decide import ScalingDecision

OF_A_SERVICE: Final = (
    "kvasir_service_wanted_replicas",
    "kvasir_service_ready_replicas",
    "kvasir_service_imbalance_fraction",
)
WATCH_FAILURES: Final = ("stale", "failed", "forbidden", "missing", "unauthorized")
BY_CLASS: Final = ("kvasir_service_price_per_hour", "kvasir_service_class_tokens_per_price_unit")


class Telemetry:
    """Counters, gauges and histograms of OPERATOR by name, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._families: dict[str, Any] = {
            m.name: _family(m, self.registry) for m in OPERATOR if m.name not in OF_A_DECISION
        }
        for why in WATCH_FAILURES:
            self._families["kvasir_operator_watch_failures_total"].labels(why=why)  # 0 before the first one
        self._decisions = DecisionMetrics(OPERATOR)
        self.registry.register(self._decisions)
        self._signals: dict[Key, set[str]] = {}
        self._by_class: dict[Key, dict[str, dict[str, float]]] = {}

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
        """The watches ended and are to be started again. why: one of WATCH_FAILURES."""
        self._families["kvasir_operator_watch_failures_total"].labels(why=why).inc()

    def wrote(self, kind: str) -> None:
        """An object of that kind was written."""
        self._families["kvasir_operator_writes_total"].labels(kind=kind).inc()

    def replicas(self, service: Key, *, wanted: int, ready: int) -> None:
        """How many there are and ought to be."""
        self._families["kvasir_service_wanted_replicas"].labels(*service).set(wanted)
        self._families["kvasir_service_ready_replicas"].labels(*service).set(ready)

    def cost(self, service: Key, *, price_per_hour: Mapping[str, float], tokens_per_price: Mapping[str, float]) -> None:
        """What the replicas cost, and what a unit of price buys by forecast, by class. Other classes are forgotten."""
        before = self._by_class.pop(service, {})
        now = {name: dict(values) for name, values in zip(BY_CLASS, (price_per_hour, tokens_per_price), strict=True)}
        for name, values in now.items():
            for gone in before.get(name, {}).keys() - values.keys():
                self._remove(name, *service, gone)
            for accelerator_class, value in values.items():
                self._families[name].labels(*service, accelerator_class).set(value)
        if any(now.values()):
            self._by_class[service] = now

    def imbalance(self, service: Key, fraction: float) -> None:
        """How unevenly its load lies on replicas."""
        self._families["kvasir_service_imbalance_fraction"].labels(*service).set(fraction)

    def decided(self, service: Key, decision: ScalingDecision) -> None:
        """Replicas required by each signal, the bounds, and what they are computed from."""
        self._decisions.last[service] = decision

    def changed(self, service: Key, signal: str) -> None:
        """The autoscaler wants another number. signal: what determined it."""
        self._families["kvasir_service_decisions_total"].labels(*service, signal).inc()
        self._signals.setdefault(service, set()).add(signal)

    def forget(self, service: Key) -> None:
        """The service is gone: so are its series."""
        for name in OF_A_SERVICE:
            self._remove(name, *service)
        self.cost(service, price_per_hour={}, tokens_per_price={})
        self.forget_decisions(service)

    def forget_decisions(self, service: Key) -> None:
        """Nothing is decided for the service any more, because it is gone or has no autoscaling."""
        self._decisions.last.pop(service, None)
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


def _family(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=registry)
        case "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=registry)
        case "histogram":
            return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
