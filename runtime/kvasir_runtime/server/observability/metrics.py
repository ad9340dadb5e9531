"""/metrics of a runtime pod: the families that kvasir_api.metrics declares, from the engine's snapshot and the counts
of this process.

Built once by the process; scraped on the http port. Gauges and totals are read from the last snapshot when scraped, so
nothing is copied per step.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final

from msgspec.structs import replace
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir_api import device_peaks, machine_metrics, metrics
from kvasir_api.metric import Metric as DeclaredMetric
from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState, ServedTotals
from kvasir_runtime.server.observability.gpu_metrics import GpuMetrics
from kvasir_runtime.server.observability.histogram import FastHistogram
from kvasir_runtime.server.observability.request_metrics import SequenceStats
from kvasir_runtime.server.observability.tenant_metrics import TenantMetrics
from kvasir_runtime.server.observability.vllm_metrics import VllmMetrics
from kvasir_runtime.wire import EngineFacts

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

FROM_STATE: Final[dict[str, Callable[[RuntimeState], float]]] = {
    "kvasir_kv_capacity_tokens": lambda state: state.kv.capacity_tokens,
    "kvasir_kv_pinned_tokens": lambda state: state.kv.pinned_tokens,
    "kvasir_kv_cached_tokens": lambda state: state.kv.cached_tokens,
    "kvasir_kv_free_tokens": lambda state: state.kv.free_tokens,
    "kvasir_kv_host_capacity_tokens": lambda state: state.kv_host.capacity_tokens,
    "kvasir_kv_host_cached_tokens": lambda state: state.kv_host.cached_tokens,
    "kvasir_kv_host_stored_tokens_total": lambda state: state.kv_host.stored_tokens,
    "kvasir_kv_host_loaded_tokens_total": lambda state: state.kv_host.loaded_tokens,
    "kvasir_kv_host_missed_tokens_total": lambda state: state.kv_host.missed_tokens,
    "kvasir_kv_host_load_bytes_per_second": lambda state: state.kv_host.load_bytes_per_s,
    "kvasir_kv_host_store_bytes_per_second": lambda state: state.kv_host.store_bytes_per_s,
    "kvasir_kv_host_fetched_tokens_total": lambda state: state.kv_host.fetched_tokens,
    "kvasir_kv_host_prefetched_tokens_total": lambda state: state.kv_host.prefetched_tokens,
    "kvasir_kv_host_failed_fetches_total": lambda state: state.kv_host.failed_fetches,
    "kvasir_kv_handed_over_prompts_total": lambda state: state.kv_host.handed_over_prompts,
    "kvasir_kv_peer_prompts_total": lambda state: state.kv_host.peer_prompts,
    "kvasir_kv_host_fetch_bytes_per_second": lambda state: state.kv_host.fetch_bytes_per_s,
    "kvasir_requests_running": lambda state: state.running,
    "kvasir_requests_waiting": lambda state: state.waiting,
    "kvasir_waiting_uncached_tokens": lambda state: state.waiting_uncached_tokens,
    "kvasir_prefill_tokens_per_second": lambda state: state.rates.prefill_tokens_per_s,
    "kvasir_decode_step_seconds": lambda state: state.rates.decode_step_s,
    "kvasir_decode_step_slope_seconds": lambda state: state.rates.decode_slope_s,
    "kvasir_prefill_stall_fraction": lambda state: state.rates.stall_fraction,
    "kvasir_queue_seconds": lambda state: state.ttft.queue_s,
    "kvasir_ttft_low_ratio": lambda state: state.ttft.low_ratio,
    "kvasir_ttft_high_ratio": lambda state: state.ttft.high_ratio,
    "kvasir_ttft_calibrated": lambda state: state.ttft.calibrated,
    "kvasir_ttft_refusals_total": lambda state: state.ttft.refused,
    "kvasir_ttft_refusals_rechecked_total": lambda state: state.ttft.rechecked,
    "kvasir_ttft_refusals_wrong_total": lambda state: state.ttft.wrongly_refused,
    "kvasir_ready": lambda state: state.phase == "ready",
    "kvasir_arrivals_total": lambda state: state.totals.arrivals,
    "kvasir_prompt_tokens_total": lambda state: state.totals.prompt_tokens,
    "kvasir_generation_tokens_total": lambda state: state.totals.generation_tokens,
    "kvasir_prefix_query_tokens_total": lambda state: state.totals.prefix_query_tokens,
    "kvasir_prefix_hit_tokens_total": lambda state: state.totals.prefix_hit_tokens,
    "kvasir_prefix_saved_seconds_total": lambda state: state.totals.prefix_saved_s,
    "kvasir_engine_busy_seconds_total": lambda state: state.work.seconds,
    "kvasir_model_flops_total": lambda state: state.work.flops,
    "kvasir_model_read_bytes_total": lambda state: state.work.read_bytes,
    "kvasir_preemptions_total": lambda state: state.totals.preemptions,
    "kvasir_suffix_cache_tokens": lambda state: state.speculation.cached_tokens,
    "kvasir_draft_tokens_total": lambda state: state.totals.drafted_tokens,
    "kvasir_draft_tokens_accepted_total": lambda state: state.totals.accepted_tokens,
    "kvasir_draft_length_tokens": lambda state: state.speculation.draft_tokens,
    "kvasir_draft_acceptance_fraction": lambda state: state.speculation.acceptance_fraction,
    "kvasir_drafting_stopped": lambda state: bool(state.speculation.why),
    "kvasir_undrafted_steps_total": lambda state: state.speculation.undrafted_steps,
    "kvasir_text_drafted_steps_total": lambda state: state.speculation.text_steps,
    "kvasir_model_drafted_steps_total": lambda state: state.speculation.model_steps,
    "kvasir_kv_token_seconds_total": lambda state: state.totals.kv_token_seconds,
    "kvasir_invalid_outputs_total": lambda state: state.totals.invalid_outputs,
    "kvasir_step_memory_failures_total": lambda state: state.totals.memory_failures,
}
"""How a family is read from a snapshot; the families that are not here are counted by RuntimeMetrics."""


class RuntimeMetrics:
    """Counts of the API process, and the registry that exposes all. snapshot: the state as /state would serve it.
    clock: monotonic seconds. engine_pid: of the engine's process, 0 before it runs.
    """

    def __init__(
        self, model_name: str, snapshot: Callable[[], RuntimeState], clock: Callable[[], float] = time.monotonic
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # an unused series per histogram
        self._registry = CollectorRegistry()
        self._registry.register(_FromState(model_name, snapshot))
        declared = {metric.name: metric for metric in (*metrics.RUNTIME, *metrics.HTTP)}
        self._ended = _counter(declared["kvasir_requests_total"], self._registry)
        self._model_name = model_name
        self._first = _histogram(declared["kvasir_time_to_first_token_seconds"], self._registry, model_name)
        gap = declared["kvasir_inter_token_seconds"]
        self._gap = FastHistogram(gap, (model_name,), gap.buckets, self._registry)
        self._duration = _histogram(declared["kvasir_request_duration_seconds"], self._registry, model_name)
        self._grammar_s = _histogram(declared["kvasir_grammar_compile_seconds"], self._registry, model_name)
        self._grammars_refused = _counter(declared["kvasir_grammars_refused_total"], self._registry).labels(model_name)
        self._rejected = _counter(declared["kvasir_requests_rejected_total"], self._registry)
        self._http_requests = _counter(declared["http_requests_total"], self._registry)
        self._http_fine = _plain_histogram(declared["http_request_duration_highr_seconds"], self._registry)
        self._http_duration = _plain_histogram(declared["http_request_duration_seconds"], self._registry)
        self._peaks = [
            _gauge(declared[f"kvasir_device_peak_{what}_per_second"], self._registry, model_name)
            for what in ("flops", "bytes")
        ]
        _gauge(declared["kvasir_event_loop_tasks"], self._registry, model_name).set_function(_num_tasks)
        self.engine_pid = 0
        ProcessCollector(registry=self._registry)
        ProcessCollector(machine_metrics.ENGINE_PROCESS, pid=lambda: self.engine_pid, registry=self._registry)
        self._aliases = VllmMetrics(model_name, self._registry, snapshot, clock)
        self.tenants = TenantMetrics(model_name, self._registry, clock)
        self.served = ServedTotals()

    def opened(self, ready: EngineFacts, options: ServeOptions) -> None:
        """The model is ready. Called once."""
        self._aliases.opened(ready, options)
        known = device_peaks.peak(ready.device, ready.dtype)
        if known is not None:
            for gauge, best in zip(self._peaks, (known.flops_per_s, known.memory_bytes_per_s), strict=True):
                gauge.set(best)
        if not ready.device.lower().startswith("cpu"):
            self._registry.register(GpuMetrics())

    def first_token(self, since_arrival_s: float) -> None:
        """A sequence has its first token."""
        self._first.observe(since_arrival_s)
        served = self.served
        self.served = replace(served, ttft_s=served.ttft_s + since_arrival_s, first_tokens=served.first_tokens + 1)
        self._aliases.observe("time_to_first_token_seconds", since_arrival_s)

    def tokens(self, count: int, gap_s: float) -> None:
        """count tokens came gap_s after the one before; they share the time."""
        self._gap.observe(gap_s / count, count)
        self._aliases.observe("inter_token_latency_seconds", gap_s / count, count)

    def ended(self, sequence: SequenceStats) -> None:
        """A sequence ended; its reason is stop, length, abort or error."""
        self._ended.labels(self._model_name, sequence.reason).inc()
        if sequence.reason != "abort":
            served, failed = self.served, sequence.reason == "error"
            self.served = replace(served, answered=served.answered + 1, failed=served.failed + failed)
        self._duration.observe(sequence.duration_s)
        self._aliases.ended(sequence)

    def answered(self, num_choices: int, longest_tokens: int) -> None:
        """All choices of a prompt ended. longest_tokens: of the longest choice."""
        self._aliases.observe("request_params_n", num_choices)
        self._aliases.observe("request_max_num_generation_tokens", longest_tokens)

    def step(self, computed_tokens: int) -> None:
        """The engine computed a step."""
        self._aliases.step(computed_tokens)

    def grammar(self, seconds: float, refused: bool) -> None:
        """A new grammar was validated."""
        self._grammar_s.observe(seconds)
        if refused:
            self._grammars_refused.inc()

    def rejected(self, code: str) -> None:
        """A request was refused before anything of it was computed. code: of the error."""
        self._rejected.labels(self._model_name, code).inc()

    def http(self, handler: str, method: str, status: int, elapsed_s: float, retried: bool = False) -> None:
        """An HTTP request was answered. handler and method come from small sets, whatever clients send. retried: the
        client had sent it before."""
        refused = status == HTTPStatus.TOO_MANY_REQUESTS
        if refused or (retried and method == "POST" and status < HTTPStatus.MULTIPLE_CHOICES):
            served = self.served
            self.served = replace(served, refused=served.refused + refused, retried=served.retried + retried)
        self._http_requests.labels(handler, f"{status // 100}xx", method).inc()
        self._http_duration.labels(handler, method).observe(elapsed_s)
        self._http_fine.observe(elapsed_s)

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self._registry)


class _FromState(Collector):
    """Families read from one snapshot, so that a scrape is consistent in itself."""

    def __init__(self, model_name: str, snapshot: Callable[[], RuntimeState]) -> None:
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


def _num_tasks() -> float:
    """Of the event loop that this thread runs; 0 in one that runs none."""
    try:
        return float(len(asyncio.all_tasks()))
    except RuntimeError:
        return 0.0


def _counter(metric: DeclaredMetric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _gauge(metric: DeclaredMetric, registry: CollectorRegistry, model_name: str) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry).labels(model_name)


def _histogram(metric: DeclaredMetric, registry: CollectorRegistry, model_name: str) -> Histogram:
    return _plain_histogram(metric, registry).labels(model_name)


def _plain_histogram(metric: DeclaredMetric, registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
