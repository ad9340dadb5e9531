"""Metrics of all processes, declared once: names, kinds, help texts, labels and buckets.

Names follow Prometheus: base units, `_total` for counters, fractions 0..1. The pages and dashboards derive from this.
"""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

LATENCY_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
INTERTOKEN_BUCKETS: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
DURATION_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
CHOICE_BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family. name is as scraped (counters end in _total)."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_MODEL = ("model_name",)

RUNTIME: Final[tuple[Metric, ...]] = (
    Metric(name="kvasir_kv_capacity_tokens", kind="gauge", help="Tokens the KV cache can hold.", labels=_MODEL),
    Metric(
        name="kvasir_kv_pinned_tokens",
        kind="gauge",
        help="KV cache tokens referenced by live sequences.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_cached_tokens",
        kind="gauge",
        help="KV cache tokens kept for prefix hits, evictable.",
        labels=_MODEL,
    ),
    Metric(name="kvasir_kv_free_tokens", kind="gauge", help="KV cache tokens that hold nothing.", labels=_MODEL),
    Metric(name="kvasir_requests_running", kind="gauge", help="Requests in the running batch.", labels=_MODEL),
    Metric(
        name="kvasir_requests_waiting", kind="gauge", help="Requests waiting for a place in the batch.", labels=_MODEL
    ),
    Metric(
        name="kvasir_waiting_uncached_tokens",
        kind="gauge",
        help="Prompt tokens waiting that are not in the prefix cache.",
        labels=_MODEL,
    ),
    Metric(name="kvasir_prefill_tokens_per_second", kind="gauge", help="Measured prefill rate.", labels=_MODEL),
    Metric(
        name="kvasir_decode_step_seconds",
        kind="gauge",
        help="Measured seconds of a step of single tokens.",
        labels=_MODEL,
    ),
    Metric(name="kvasir_ready", kind="gauge", help="1 while the pod takes requests.", labels=_MODEL),
    Metric(name="kvasir_arrivals_total", kind="counter", help="Requests accepted.", labels=_MODEL),
    Metric(
        name="kvasir_requests_total",
        kind="counter",
        help="Requests ended, by reason.",
        labels=(*_MODEL, "finish_reason"),
    ),
    Metric(
        name="kvasir_prompt_tokens_total", kind="counter", help="Prompt tokens of accepted requests.", labels=_MODEL
    ),
    Metric(name="kvasir_generation_tokens_total", kind="counter", help="Tokens generated.", labels=_MODEL),
    Metric(
        name="kvasir_prefix_query_tokens_total",
        kind="counter",
        help="Prompt tokens looked up in the prefix cache.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_prefix_hit_tokens_total",
        kind="counter",
        help="Prompt tokens found in the prefix cache.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_preemptions_total",
        kind="counter",
        help="Sequences that lost their blocks and were computed again.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_kv_token_seconds_total", kind="counter", help="KV token-seconds of ended requests.", labels=_MODEL
    ),
    Metric(
        name="kvasir_time_to_first_token_seconds",
        kind="histogram",
        help="From arrival to the first token.",
        labels=_MODEL,
        buckets=LATENCY_BUCKETS,
    ),
    Metric(
        name="kvasir_inter_token_seconds",
        kind="histogram",
        help="Between two tokens of one request.",
        labels=_MODEL,
        buckets=INTERTOKEN_BUCKETS,
    ),
    Metric(
        name="kvasir_request_duration_seconds",
        kind="histogram",
        help="From arrival to the last token.",
        labels=_MODEL,
        buckets=DURATION_BUCKETS,
    ),
)

_SERVICE = ("namespace", "service")

OPERATOR: Final[tuple[Metric, ...]] = (
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
    Metric(name="kvasir_service_wanted_replicas", kind="gauge", help="Replicas the autoscaler wants.", labels=_SERVICE),
    Metric(name="kvasir_service_ready_replicas", kind="gauge", help="Replicas that are ready.", labels=_SERVICE),
    Metric(
        name="kvasir_service_demand_replicas",
        kind="gauge",
        help="Replicas each law asks for.",
        labels=(*_SERVICE, "law"),
    ),
    Metric(
        name="kvasir_service_decisions_total",
        kind="counter",
        help="Changes of the wanted replicas, by law.",
        labels=(*_SERVICE, "law"),
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
        name="kvasir_gateway_choice_seconds",
        kind="histogram",
        help="Time to choose an endpoint.",
        buckets=CHOICE_BUCKETS,
    ),
)
