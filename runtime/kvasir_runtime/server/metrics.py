"""/metrics of a runtime pod: the families that kvasir_api.metrics declares, from the engine's snapshot and our counts.

Built once by the process; scraped on the http port. Gauges and totals are read from the last snapshot when scraped, so
nothing is copied per step.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir_api import metrics
from kvasir_api.state import State

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

FROM_STATE: Final[dict[str, Callable[[State], float]]] = {
    "kvasir_kv_capacity_tokens": lambda state: state.kv.capacity_tokens,
    "kvasir_kv_pinned_tokens": lambda state: state.kv.pinned_tokens,
    "kvasir_kv_cached_tokens": lambda state: state.kv.cached_tokens,
    "kvasir_kv_free_tokens": lambda state: state.kv.free_tokens,
    "kvasir_requests_running": lambda state: state.running,
    "kvasir_requests_waiting": lambda state: state.waiting,
    "kvasir_waiting_uncached_tokens": lambda state: state.waiting_uncached_tokens,
    "kvasir_prefill_tokens_per_second": lambda state: state.rates.prefill_tokens_per_s,
    "kvasir_decode_step_seconds": lambda state: state.rates.decode_step_s,
    "kvasir_ready": lambda state: state.phase == "ready",
    "kvasir_arrivals_total": lambda state: state.totals.arrivals,
    "kvasir_prompt_tokens_total": lambda state: state.totals.prompt_tokens,
    "kvasir_generation_tokens_total": lambda state: state.totals.generation_tokens,
    "kvasir_prefix_query_tokens_total": lambda state: state.totals.prefix_query_tokens,
    "kvasir_prefix_hit_tokens_total": lambda state: state.totals.prefix_hit_tokens,
    "kvasir_preemptions_total": lambda state: state.totals.preemptions,
    "kvasir_kv_token_seconds_total": lambda state: state.totals.kv_token_seconds,
}
"""How a family is read from a snapshot; the families that are not here are counted by RuntimeMetrics."""


class RuntimeMetrics:
    """Counts of the API process, and the registry that exposes all. snapshot: the state as /state would serve it."""

    def __init__(self, model_name: str, snapshot: Callable[[], State]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series per histogram that nobody reads
        self._registry = CollectorRegistry()
        self._registry.register(_FromState(model_name, snapshot))
        declared = {metric.name: metric for metric in metrics.RUNTIME}
        self._ended = _counter(declared["kvasir_requests_total"], self._registry)
        self._model_name = model_name
        self._first = _histogram(declared["kvasir_time_to_first_token_seconds"], self._registry, model_name)
        self._gap = _histogram(declared["kvasir_inter_token_seconds"], self._registry, model_name)
        self._duration = _histogram(declared["kvasir_request_duration_seconds"], self._registry, model_name)

    def first_token(self, since_arrival_s: float) -> None:
        """A sequence has its first token."""
        self._first.observe(since_arrival_s)

    def tokens(self, count: int, gap_s: float) -> None:
        """count tokens came gap_s after the one before; they share the time."""
        for _ in range(count):
            self._gap.observe(gap_s / count)

    def ended(self, reason: str, since_arrival_s: float) -> None:
        """A sequence ended; reason stop, length, abort or error."""
        self._ended.labels(self._model_name, reason).inc()
        self._duration.observe(since_arrival_s)

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self._registry)


class _FromState(Collector):
    """Families read from one snapshot, so that a scrape is consistent in itself."""

    def __init__(self, model_name: str, snapshot: Callable[[], State]) -> None:
        self._model_name = model_name
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        state = self._snapshot()
        for metric in metrics.RUNTIME:
            value = FROM_STATE.get(metric.name)
            if value is None:
                continue
            kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            family.add_metric([self._model_name], float(value(state)))
            yield family


def _counter(metric: metrics.Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: metrics.Metric, registry: CollectorRegistry, model_name: str) -> Histogram:
    family = Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
    return family.labels(model_name)
