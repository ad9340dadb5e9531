"""The operator's own metrics, made from their one declaration."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvasir_api.control_plane_metrics import OPERATOR
from kvasir_api.metrics import Metric
from kvasir_kube.kinds import Key
from kvasir_operator.scaling.decide import LIMITS, ScalingDecision
from kvasir_operator.scaling.demand import SIGNALS

BOUNDS: Final = ("min", "max")
INPUTS: Final = (
    "running",
    "waiting",
    "waiting_tokens",
    "pinned_tokens",
    "arrivals_per_second",
    "prompt_tokens",
    "output_tokens",
    "kv_tokens",
    "request_seconds",
    "step_seconds",
    "horizon_seconds",
)
OF_A_SERVICE: Final = (
    "kvasir_service_wanted_replicas",
    "kvasir_service_ready_replicas",
    "kvasir_service_imbalance_fraction",
)
WATCH_FAILURES: Final = ("stale", "failed", "forbidden", "missing", "unauthorized")
BY_CLASS: Final = ("kvasir_service_price_per_hour", "kvasir_service_class_tokens_per_price_unit")
OF_A_DECISION: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "kvasir_service_required_replicas": ((),),
    "kvasir_service_demand_replicas": tuple((signal,) for signal in SIGNALS),
    "kvasir_service_replica_bounds": tuple((bound,) for bound in BOUNDS),
    "kvasir_service_scaling_limited": tuple((limit,) for limit in LIMITS),
    "kvasir_service_load": tuple((name,) for name in INPUTS),
}
"""Series of each service with autoscaling, by metric, with the labels beside namespace and service."""


class Telemetry:
    """Counters, gauges and histograms of OPERATOR by name, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._families: dict[str, Any] = {m.name: _family(m, self.registry) for m in OPERATOR}
        for why in WATCH_FAILURES:
            self._families["kvasir_operator_watch_failures_total"].labels(why=why)  # 0 before the first one
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
        for signal in SIGNALS:
            required = decision.demand.levels.get(signal, 0.0)
            self._families["kvasir_service_demand_replicas"].labels(*service, signal).set(required)
        self._families["kvasir_service_required_replicas"].labels(*service).set(decision.raw)
        for bound, count in zip(BOUNDS, (decision.policy.min_replicas, decision.policy.max_replicas), strict=True):
            self._families["kvasir_service_replica_bounds"].labels(*service, bound).set(count)
        for limit in LIMITS:
            self._families["kvasir_service_scaling_limited"].labels(*service, limit).set(limit == decision.limited_by)
        for name, value in zip(INPUTS, _inputs(decision), strict=True):
            self._families["kvasir_service_load"].labels(*service, name).set(value)

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
        for name, values in OF_A_DECISION.items():
            for value in values:
                self._remove(name, *service, *value)
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


def _inputs(decision: ScalingDecision) -> tuple[float, ...]:
    """In the order of INPUTS."""
    load = decision.demand.load
    return (
        load.running,
        load.waiting,
        load.waiting_tokens,
        load.pinned_tokens,
        load.arrivals_per_s,
        load.prompt_tokens,
        load.output_tokens,
        load.kv_tokens,
        load.seconds,
        load.step.mean_s,
        decision.policy.horizon_s,
    )


def _family(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    match metric.kind:
        case "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=registry)
        case "gauge":
            return Gauge(metric.name, metric.help, metric.labels, registry=registry)
        case "histogram":
            return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
