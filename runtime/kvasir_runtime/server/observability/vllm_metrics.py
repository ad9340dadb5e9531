"""The `vllm:*` families: what our snapshot and counts are called by those who know vLLM's metrics.

Owned by RuntimeMetrics. The gauges and totals can be read at any time; the histograms exist once the model is open, as
their buckets follow its longest context.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvasir_api import metrics
from kvasir_api.metric import Metric as DeclaredMetric
from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState
from kvasir_runtime.server.observability.histogram import FastHistogram
from kvasir_runtime.server.observability.request_metrics import SequenceStats
from kvasir_runtime.wire import EngineFacts

ENGINE: Final = "0"
AVERAGED_S: Final = 10.0
DECLARED: Final = {metric.name.removeprefix("vllm:"): metric for metric in metrics.VLLM}

Series = tuple[tuple[str, ...], float]
"""Values of the labels after model_name and engine, and the value."""

FROM_STATE: Final[dict[str, Callable[[RuntimeState], tuple[Series, ...]]]] = {
    "num_requests_running": lambda state: (((), state.running),),
    "num_requests_waiting": lambda state: (((), state.waiting),),
    "num_requests_waiting_by_reason": lambda state: ((("capacity",), state.waiting), (("deferred",), 0)),
    "kv_cache_usage_perc": lambda state: (((), pinned_fraction(state)),),
    "gpu_cache_usage_perc": lambda state: (((), pinned_fraction(state)),),
    "engine_sleep_state": lambda _: tuple(((name,), name == "awake") for name in metrics.SLEEP_STATES),
    "prefix_cache_queries_total": lambda state: (((), state.totals.prefix_query_tokens),),
    "prefix_cache_hits_total": lambda state: (((), state.totals.prefix_hit_tokens),),
    "external_prefix_cache_queries_total": lambda _: (((), 0),),
    "external_prefix_cache_hits_total": lambda _: (((), 0),),
    "mm_cache_queries_total": lambda _: (((), 0),),
    "mm_cache_hits_total": lambda _: (((), 0),),
    "num_preemptions_total": lambda state: (((), state.totals.preemptions),),
    "prompt_tokens_total": lambda state: (((), state.totals.prompt_tokens),),
    "prompt_tokens_by_source_total": lambda state: (
        (("local_compute",), state.totals.prefix_query_tokens - state.totals.prefix_hit_tokens),
        (("local_cache_hit",), state.totals.prefix_hit_tokens),
        (("external_kv_transfer",), 0),
    ),
    "prompt_tokens_cached_total": lambda state: (((), state.totals.prefix_hit_tokens),),
    "generation_tokens_total": lambda state: (((), state.totals.generation_tokens),),
    "spec_decode_num_draft_tokens_total": lambda state: (((), state.totals.drafted_tokens),),
    "spec_decode_num_accepted_tokens_total": lambda state: (((), state.totals.accepted_tokens),),
}


def pinned_fraction(state: RuntimeState) -> float:
    """Share of the KV cache that live sequences hold, 0..1."""
    return state.kv.pinned_tokens / max(1, state.kv.capacity_tokens)


def cache_config(ready: EngineFacts, options: ServeOptions) -> tuple[str, ...]:
    """Values of the labels of cache_config_info, in the order of metrics.CACHE_CONFIG, as Python prints them."""
    values: dict[str, object] = {
        "block_size": ready.block_size,
        "num_gpu_blocks": ready.capacity_tokens // ready.block_size,
        "cache_dtype": ready.dtype,
        "enable_prefix_caching": options.prefix_cache,
        "gpu_memory_utilization": options.memory_fraction,
        "num_cpu_blocks": None,
    }
    return tuple(str(values[name]) for name in metrics.CACHE_CONFIG)


class VllmMetrics(Collector):
    """snapshot: the state as /state would serve it. clock: monotonic seconds.

    Registers itself and, with opened(), the histograms.
    """

    def __init__(
        self,
        model_name: str,
        registry: CollectorRegistry,
        snapshot: Callable[[], RuntimeState],
        clock: Callable[[], float],
    ) -> None:
        self._labels = (model_name, ENGINE)
        self._registry = registry
        self._snapshot, self._clock = snapshot, clock
        self._generated: deque[tuple[float, int]] = deque()
        self._cache_config: tuple[str, ...] | None = None
        self._histograms: dict[str, FastHistogram] = {}
        success = DECLARED["request_success_total"]
        self._success = Counter(success.name, success.help, success.labels, registry=registry)
        for reason in metrics.FINISH_REASONS:
            self._success.labels(*self._labels, reason)  # a series that is there from the start has a rate
        registry.register(self)

    def opened(self, ready: EngineFacts, options: ServeOptions) -> None:
        """The model is ready: its sizes are known. Called once."""
        self._cache_config = cache_config(ready, options)
        for name, metric in DECLARED.items():
            if metric.kind == "histogram":
                buckets = metric.buckets or metrics.token_buckets(ready.max_model_len)
                self._histograms[name] = FastHistogram(metric, self._labels, buckets, self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        state = self._snapshot()
        for name, read in FROM_STATE.items():
            yield self._family(DECLARED[name], read(state))
        average = self._tokens_per_s(state.totals.generation_tokens)
        yield self._family(DECLARED["avg_generation_throughput_toks_per_s"], (((), average),))
        if self._cache_config is not None:
            yield self._family(DECLARED["cache_config_info"], ((self._cache_config, 1),))

    def step(self, computed_tokens: int) -> None:
        """The engine computed a step."""
        self.observe("iteration_tokens_total", computed_tokens)
        if not self._generated or self._clock() >= self._generated[-1][0] + 1.0:
            self._tokens_per_s(self._snapshot().totals.generation_tokens)

    def _tokens_per_s(self, generated: int) -> float:
        """Over AVERAGED_S, or since the first look where that is less. generated: tokens since the start, as of now."""
        now, seen = self._clock(), self._generated
        if not seen or now > seen[-1][0]:
            seen.append((now, generated))
        while len(seen) > 1 and seen[1][0] <= now - AVERAGED_S:
            seen.popleft()
        first_at, first = seen[0]
        return (generated - first) / (now - first_at) if now > first_at else 0.0

    def observe(self, name: str, value: float, count: int = 1) -> None:
        """Count a value in a histogram, once or several times; nothing before the model is loaded."""
        histogram = self._histograms.get(name)
        if histogram is not None:
            histogram.observe(value, count)

    def ended(self, sequence: SequenceStats) -> None:
        """Everything that is counted once per sequence."""
        self._success.labels(*self._labels, sequence.reason).inc()
        values = {
            "e2e_request_latency_seconds": sequence.duration_s,
            "request_prompt_tokens": sequence.prompt_tokens,
            "request_generation_tokens": sequence.generation_tokens,
            "request_params_max_tokens": sequence.max_tokens,
            "request_num_preemptions": sequence.preemptions,
        }
        if sequence.queue_s >= 0:
            values["request_queue_time_seconds"] = sequence.queue_s
        if sequence.prefill_s >= 0:
            values["request_prefill_time_seconds"] = sequence.prefill_s
            values["request_prefill_kv_computed_tokens"] = sequence.prompt_tokens - sequence.cached_tokens
            values["request_decode_time_seconds"] = sequence.decode_s
            values["request_inference_time_seconds"] = sequence.prefill_s + sequence.decode_s
        if sequence.prefill_s >= 0 and sequence.generation_tokens > 1:
            values["request_time_per_output_token_seconds"] = sequence.decode_s / (sequence.generation_tokens - 1)
        for name, value in values.items():
            self.observe(name, value)

    def _family(self, metric: DeclaredMetric, series: tuple[Series, ...]) -> Metric:
        kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
        family = kind(metric.name, metric.help, labels=metric.labels)
        for labels, value in series:
            family.add_metric([*self._labels, *labels], float(value))
        return family
