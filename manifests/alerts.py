"""Recording rules and alerts over the declared metrics, as a PrometheusRule. `monitoring.py` writes it.

Each alert has a case in tests/manifests/test_alerts.py in which `promtool test rules` sees it fire, and one in which
it does not.
"""

from dataclasses import dataclass
from typing import Any, Final

_OF = "{{ $labels.namespace }}/{{ $labels.service }}"
_BY = "by (namespace, service)"
_BY_TENANT = "by (namespace, service, tenant)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. pending: how long the expression holds before it fires. summary: names the object; advice: what to
    do."""

    name: str
    expr: str
    pending: str
    severity: str
    summary: str
    advice: str


def _alert(name: str, severity: str, pending: str, expr: str, summary: str, advice: str) -> Alert:
    return Alert(name=f"Kvasir{name}", expr=expr, pending=pending, severity=severity, summary=summary, advice=advice)


RECORDED: Final = {
    "kvasir:service_generation_tokens:rate5m": f"sum {_BY} (rate(kvasir_generation_tokens_total[5m]))",
    "kvasir:service_failed_requests:ratio5m": f'sum {_BY} (rate(kvasir_gateway_requests_total{{outcome="server_error"}}[5m])) '
    f"/ sum {_BY} (rate(kvasir_gateway_requests_total[5m]))",
    "kvasir:service_tokens_per_price_unit": "1 / (kvasir_service_price_per_hour > 0) "
    "* on (namespace, service) group_left () (3600 * kvasir:service_generation_tokens:rate5m)",
    "kvasir:class_tokens_per_price_unit": "sum by (accelerator_class) (kvasir:service_tokens_per_price_unit * kvasir_service_price_per_hour) "
    "/ sum by (accelerator_class) (kvasir_service_price_per_hour > 0 and kvasir:service_tokens_per_price_unit)",
    "kvasir:tenant_kv_cache:ratio5m": f"sum {_BY_TENANT} (rate(kvasir_tenant_kv_token_seconds_total[5m])) "
    f"/ on (namespace, service) group_left () (sum {_BY} (rate(kvasir_tenant_kv_token_seconds_total[5m])) > 0)",
    "kvasir:service_class_price_per_hour": "sum by (namespace, service, accelerator_class) (kvasir_service_price_per_hour)",
    "kvasir:tenant_price_per_hour": "kvasir:tenant_kv_cache:ratio5m * on (namespace, service) group_left (accelerator_class) ("
    f"(kvasir:service_class_price_per_hour and on (namespace, service) (count {_BY} (kvasir:service_class_price_per_hour) == 1)) "
    f"or on (namespace, service) sum {_BY} (kvasir:service_class_price_per_hour))",
    "kvasir:tenant_tokens_per_price_unit": f"3600 * sum {_BY_TENANT} (rate(kvasir_tenant_generation_tokens_total[5m])) "
    "/ on (namespace, service, tenant) group_right () (kvasir:tenant_price_per_hour > 0)",
    "kvasir:service_cheapest_class": "topk by (namespace, service) (1, kvasir_service_class_tokens_per_price_unit)",
}  # fmt: skip
"""Expressions by the name of what they record, in the order in which they use one another."""

ALERTS: Final = (
    _alert(
        "ServiceDown", "critical", "5m",
        f"sum {_BY} (kvasir_service_wanted_replicas) > 0 and sum {_BY} (kvasir_service_ready_replicas) == 0",
        f"No replica of {_OF} is ready.",
        "kubectl describe infsvc shows the conditions, kvasir why pod/NAME what a replica waits for.",
    ),
    _alert(
        "ReplicasMissing", "warning", "30m",
        f"sum {_BY} (kvasir_service_ready_replicas) < sum {_BY} (kvasir_service_wanted_replicas)",
        f"{_OF} has had fewer ready replicas than it requires for half an hour.",
        "The conditions CapacityLimited and Degraded say why replicas do not start.",
    ),
    _alert(
        "RequestsFailing", "critical", "5m",
        "kvasir:service_failed_requests:ratio5m > 0.05",
        f"{{{{ $value | humanizePercentage }}}} of the requests of {_OF} fail.",
        "The condition Degraded and the log of the gateway's picker name the replica.",
    ),
    _alert(
        "ScalingAtMaximum", "warning", "15m",
        f'sum {_BY} (kvasir_service_required_replicas) > sum {_BY} (kvasir_service_replica_bounds{{bound="max"}})',
        f"{_OF} requires {{{{ $value }}}} replicas, more than spec.autoscaling allows.",
        "Raise maxReplicas, or the schedule's: the condition ScalingAtMax names the field.",
    ),
    _alert(
        "ReadingsMissing", "warning", "10m",
        'kvasir_service_scaling_limited{limited_by="readings"} == 1',
        f"The count of {_OF} stays while readings are missing.",
        "The condition MetricsStale names the pods and gateways that do not answer on their ops port.",
    ),
    _alert(
        "KvCacheExhausted", "warning", "10m",
        f"sum {_BY} (rate(kvasir_preemptions_total[5m])) > 0.1",
        f"{_OF} computes {{{{ $value | humanize }}}} sequences per second again, because its KV cache is full.",
        "Let the autoscaler add replicas, lower runtime.maxSequences, or set runtime.kvCacheDtype to a type of fewer bits.",
    ),
    _alert(
        "LoadUneven", "warning", "10m",
        "kvasir_service_imbalance_fraction > 0.4",
        f"One replica of {_OF} is fuller than the others by {{{{ $value | humanizePercentage }}}} of its capacity.",
        "The condition Imbalanced names it. Gateways that cannot read the replicas' load spread requests so.",
    ),
    _alert(
        "InvalidOutputs", "critical", "0m",
        f"sum {_BY} (increase(kvasir_invalid_outputs_total[10m])) > 0",
        f"A model of {_OF} has put out NaN or infinity.",
        "The checkpoint, its dtype or the device is damaged: the replica's log names the request.",
    ),
    _alert(
        "StepsWithoutMemory", "warning", "0m",
        f"sum {_BY} (increase(kvasir_step_memory_failures_total[10m])) > 2",
        f"Replicas of {_OF} find no memory for steps and compute smaller ones.",
        "Lower runtime.maxBatchTokens or runtime.maxSequences, or leave the device more memory with runtime.memoryPercent.",
    ),
    _alert(
        "GatewayWithoutEndpoints", "critical", "2m",
        f'sum {_BY} (kvasir_gateway_endpoints{{state="ready"}}) == 0 and sum {_BY} (rate(kvasir_gateway_requests_total[5m])) > 0',
        f"Requests for {_OF} find no ready endpoint.",
        "kubectl describe infsvc shows why no replica is ready.",
    ),
    _alert(
        "GatewayBlind", "warning", "10m",
        f'sum {_BY} (rate(kvasir_gateway_choices_total{{reason="no_reading"}}[5m])) > 0.5 * sum {_BY} (rate(kvasir_gateway_choices_total[5m]))',
        f"Gateways choose endpoints of {_OF} without their load.",
        "Network policies must let gateways reach the ops port of the replicas.",
    ),
    _alert(
        "OperatorMissing", "critical", "5m",
        "(sum(kvasir_operator_leading) or vector(0)) == 0",
        "No operator acts: nothing is scaled, rolled out or repaired.",
        "kubectl -n kvasir-system get pods,lease shows the operators and which of them leads.",
    ),
    _alert(
        "OperatorFailing", "warning", "15m",
        'sum(rate(kvasir_operator_reconciles_total{outcome="error"}[5m])) > 0.1',
        "The operator's reconciles fail {{ $value | humanize }} times per second.",
        "Its log names the service and the API server's answer.",
    ),
    _alert(
        "WatchesStale", "warning", "5m",
        "max(kvasir_operator_listed_seconds_ago * on (namespace, pod) (kvasir_operator_leading == 1)) > 1800",
        "The operator has not listed its objects for {{ $value | humanizeDuration }}.",
        "The API server refuses or does not answer lists: the operator's log has its words.",
    ),
)  # fmt: skip


def prometheus_rule() -> dict[str, Any]:
    """All of them in one object."""
    labels = {"app.kubernetes.io/name": "kvasir-operator", "app.kubernetes.io/part-of": "kvasir"}
    recorded = [{"record": name, "expr": expr} for name, expr in RECORDED.items()]
    alerts = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.pending,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.advice},
        }
        for alert in ALERTS
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "kvasir", "namespace": "kvasir-system", "labels": labels},
        "spec": {
            "groups": [{"name": "kvasir-recorded", "rules": recorded}, {"name": "kvasir-alerts", "rules": alerts}]
        },
    }
