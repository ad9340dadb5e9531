"""Metrics of the operator and the gateway, declared once, in the form of `metrics.py`."""

from typing import Final

from kvasir_api.metric import Metric
from kvasir_api.metrics import LATENCY_BUCKETS

CHOICE_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
HOLD_BUCKETS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)

_SERVICE = ("namespace", "service")

OPERATOR: Final[tuple[Metric, ...]] = (
    Metric(name="kvasir_operator_leading", kind="gauge", help="1 while this operator acts, 0 while it stands by."),
    Metric(
        name="kvasir_operator_reconciles_total", kind="counter", help="Reconciles, by outcome.", labels=("outcome",)
    ),
    Metric(
        name="kvasir_operator_reconcile_seconds",
        kind="histogram",
        help="Duration of a reconcile.",
        buckets=LATENCY_BUCKETS,
    ),
    Metric(
        name="kvasir_operator_writes_total",
        kind="counter",
        help="Writes to the API server, by kind of object.",
        labels=("kind",),
    ),
    Metric(
        name="kvasir_operator_listed_seconds_ago",
        kind="gauge",
        help="Seconds since everything was listed, which is what finds a stale watch.",
    ),
    Metric(
        name="kvasir_operator_watch_failures_total",
        kind="counter",
        help="Times that the watches had to be started again, by what ended them.",
        labels=("why",),
    ),
    Metric(
        name="kvasir_service_wanted_replicas",
        kind="gauge",
        help="Replicas that the autoscaler requires.",
        labels=_SERVICE,
    ),
    Metric(name="kvasir_service_ready_replicas", kind="gauge", help="Replicas that are ready.", labels=_SERVICE),
    Metric(
        name="kvasir_service_imbalance_fraction",
        kind="gauge",
        help="By how much of its capacity the fullest replica is fuller than the others on the mean, over a minute, 0..1.",
        labels=_SERVICE,
    ),
    Metric(
        name="kvasir_service_price_per_hour",
        kind="gauge",
        help="Price of the replicas that have a node, per hour, by pricePerHour of their AcceleratorClass; absent without one.",
        labels=(*_SERVICE, "accelerator_class"),
    ),
    Metric(
        name="kvasir_service_class_tokens_per_price_unit",
        kind="gauge",
        help="Forecast of the tokens that a replica decodes at best for one unit of pricePerHour, of classes that meet itlMilliseconds.",
        labels=(*_SERVICE, "accelerator_class"),
    ),
    Metric(
        name="kvasir_service_demand_replicas",
        kind="gauge",
        help="Replicas that each signal requires.",
        labels=(*_SERVICE, "signal"),
    ),
    Metric(
        name="kvasir_service_required_replicas",
        kind="gauge",
        help="Replicas that the largest signal requires, before windows, rates and bounds; with minReplicas 0 at least one while a request of the last idleSeconds keeps or starts it. Absent before the first decision, and spec.replicas while no replica's capacity has been read: what an HPA or KEDA may scale by.",
        labels=_SERVICE,
    ),
    Metric(
        name="kvasir_service_replica_bounds",
        kind="gauge",
        help="Bounds of the autoscaler now, those of schedules included; bound is min or max.",
        labels=(*_SERVICE, "bound"),
    ),
    Metric(
        name="kvasir_service_scaling_limited",
        kind="gauge",
        help="1 for what keeps the count from what is required, 0 for the rest: floor, ceiling, rate, window, readings, capacity, paused, activity, reserve, idle.",
        labels=(*_SERVICE, "limited_by"),
    ),
    Metric(
        name="kvasir_service_load",
        kind="gauge",
        help="What the signals are computed from: running, waiting, waiting_tokens, pinned_tokens, arrivals_per_second, refused_per_second, prompt_tokens, output_tokens, kv_tokens, request_seconds, step_seconds, horizon_seconds.",
        labels=(*_SERVICE, "input"),
    ),
    Metric(
        name="kvasir_service_decisions_total",
        kind="counter",
        help="Changes of the wanted replicas, by signal.",
        labels=(*_SERVICE, "signal"),
    ),
)

GATEWAY: Final[tuple[Metric, ...]] = (
    Metric(
        name="kvasir_gateway_requests_total",
        kind="counter",
        help="Requests seen by the picker, by outcome.",
        labels=(*_SERVICE, "outcome"),
    ),
    Metric(
        name="kvasir_gateway_inflight_requests", kind="gauge", help="Requests forwarded and not ended.", labels=_SERVICE
    ),
    Metric(name="kvasir_gateway_endpoints", kind="gauge", help="Endpoints by state.", labels=(*_SERVICE, "state")),
    Metric(
        name="kvasir_gateway_choices_total",
        kind="counter",
        help="Choices of an endpoint, by reason: only, cheapest, tie, copy (of a prefix whose holder is busy), session, least_load, turn, no_reading, holder (of a stored response).",
        labels=(*_SERVICE, "reason"),
    ),
    Metric(
        name="kvasir_gateway_held_requests", kind="gauge", help="Requests that wait for a replica.", labels=_SERVICE
    ),
    Metric(
        name="kvasir_gateway_hold_seconds",
        kind="histogram",
        help="Time that requests waited for a replica, by outcome: forwarded, expired, gave_way (to another tenant), stalled (the service cannot start, or is gone), aborted.",
        labels=(*_SERVICE, "outcome"),
        buckets=HOLD_BUCKETS,
    ),
    Metric(
        name="kvasir_gateway_routed_requests_total",
        kind="counter",
        help="Requests that a ModelRoute sent to a service, by reason: target (of its rule, by weight), or the reason for a fallback: stalled, at_zero, saturated.",
        labels=("namespace", "route", "service", "reason"),
    ),
    Metric(
        name="kvasir_gateway_choice_seconds",
        kind="histogram",
        help="Time to choose an endpoint.",
        buckets=CHOICE_BUCKETS,
    ),
)
