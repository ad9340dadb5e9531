"""The last decision of each service as metrics, made when they are read: a tick of many services keeps references and
sets no series."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kvasir_api.metric import Metric
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
    "refused_per_second",
    "prompt_tokens",
    "output_tokens",
    "kv_tokens",
    "request_seconds",
    "step_seconds",
    "horizon_seconds",
)
OF_A_DECISION: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "kvasir_service_required_replicas": ((),),
    "kvasir_service_demand_replicas": tuple((signal,) for signal in SIGNALS),
    "kvasir_service_replica_bounds": tuple((bound,) for bound in BOUNDS),
    "kvasir_service_scaling_limited": tuple((limit,) for limit in LIMITS),
    "kvasir_service_load": tuple((name,) for name in INPUTS),
}
"""Series of each service for which is decided, by metric, with the labels beside namespace and service."""


class DecisionMetrics(Collector):
    """`last` holds the decision of each service. declared: metrics, of which those of OF_A_DECISION are made here."""

    def __init__(self, declared: Iterable[Metric]) -> None:
        self.last: dict[Key, ScalingDecision] = {}
        self._declared = [metric for metric in declared if metric.name in OF_A_DECISION]

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """As of Collector: the metrics without series."""
        return (GaugeMetricFamily(m.name, m.help, labels=m.labels) for m in self._declared)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As of Collector."""
        values = {service: _values(decision) for service, decision in self.last.items()}
        for metric, family in zip(self._declared, self.describe(), strict=True):
            for service, found in values.items():
                for labels, value in zip(OF_A_DECISION[metric.name], found[metric.name], strict=True):
                    family.add_metric([*service, *labels], value)
            yield family


def _values(decision: ScalingDecision) -> dict[str, Sequence[float]]:
    """In the order of OF_A_DECISION."""
    levels, policy, load = decision.demand.levels, decision.policy, decision.demand.load
    return {
        "kvasir_service_required_replicas": (decision.raw,),
        "kvasir_service_demand_replicas": [levels.get(signal, 0.0) for signal in SIGNALS],
        "kvasir_service_replica_bounds": (policy.min_replicas, policy.max_replicas),
        "kvasir_service_scaling_limited": [float(limit == decision.limited_by) for limit in LIMITS],
        "kvasir_service_load": (
            load.running,
            load.waiting,
            load.waiting_tokens,
            load.pinned_tokens,
            load.arrivals_per_s,
            load.refused_per_s,
            load.prompt_tokens,
            load.output_tokens,
            load.kv_tokens,
            load.seconds,
            load.step.mean_s,
            policy.horizon_s,
        ),
    }
