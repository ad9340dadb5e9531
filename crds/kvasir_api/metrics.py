"""Metrics of all processes, declared once: names, kinds, help texts, labels and buckets.

Names follow Prometheus: base units, `_total` for counters, fractions 0..1. The pages and dashboards derive from this.
"""

from typing import Final

from kvasir_api.kv_host_metrics import KV_HOST
from kvasir_api.metric import Kind, Metric

LATENCY_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
INTERTOKEN_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
DURATION_BUCKETS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
ITERATION_BUCKETS: Final = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
HTTP_BUCKETS: Final = (0.1, 0.5, 1.0)
HTTP_FINE_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip


def token_buckets(largest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 and so on up to largest tokens, as vLLM makes them from the longest context."""
    scale = [float(step * 10**power) for power in range(len(str(largest))) for step in (1, 2, 5)]
    return tuple(bucket for bucket in scale if bucket <= largest) or (1.0,)


_MODEL = ("model_name",)
_TENANT = ("model_name", "tenant")

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
    *KV_HOST,
    Metric(name="kvasir_requests_running", kind="gauge", help="Requests in the running batch.", labels=_MODEL),
    Metric(
        name="kvasir_requests_waiting", kind="gauge", help="Requests waiting for a place in the batch.", labels=_MODEL
    ),
    Metric(
        name="kvasir_waiting_uncached_tokens",
        kind="gauge",
        help="Prompt tokens waiting that are neither in the prefix cache nor on the host.",
        labels=_MODEL,
    ),
    Metric(name="kvasir_prefill_tokens_per_second", kind="gauge", help="Measured prefill rate.", labels=_MODEL),
    Metric(
        name="kvasir_decode_step_seconds",
        kind="gauge",
        help="Measured seconds of a step of single tokens.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_decode_step_slope_seconds",
        kind="gauge",
        help="Measured seconds by which one more sequence makes a step of single tokens longer.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_prefill_stall_fraction",
        kind="gauge",
        help="Share of steps with prompts and single tokens that the single tokens would not have taken alone, 0..1.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_queue_seconds",
        kind="gauge",
        help="Predicted time to the first token of a request that arrives now, behind all that wait; -1 unknown.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_ttft_low_ratio",
        kind="gauge",
        help="Actual by predicted time to the first token: 0.1 quantile of the last 200 requests that had to wait.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_ttft_high_ratio",
        kind="gauge",
        help="Actual by predicted time to the first token: 0.9 quantile of the last 200 requests that had to wait.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_ttft_calibrated",
        kind="gauge",
        help="1 while predictions are accurate enough to refuse requests by them.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_ttft_refusals_total",
        kind="counter",
        help="Requests that were refused because their objective for the first token could not be met.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_ttft_refusals_rechecked_total",
        kind="counter",
        help="Of these refusals, those that were checked again at their deadline.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_ttft_refusals_wrong_total",
        kind="counter",
        help="Of these refusals, those whose request could have been served in time, as its deadline showed.",
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
        name="kvasir_prefix_saved_seconds_total",
        kind="counter",
        help="Seconds that computing the tokens found in the prefix cache would have taken, at the measured prefill rate.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_engine_busy_seconds_total",
        kind="counter",
        help="Seconds in which the engine computed steps.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_model_flops_total",
        kind="counter",
        help="Floating-point operations of all steps, by the sizes of the model; 0 where those are not known.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_model_read_bytes_total",
        kind="counter",
        help="Bytes of weights and KV cache that all steps read, by the sizes of the model; 0 where those are not known.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_device_peak_flops_per_second",
        kind="gauge",
        help="What the card computes at best, dense in 16 bits, by its data sheet; 0 where that is not known, as of CPUs.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_device_peak_bytes_per_second",
        kind="gauge",
        help="What the card's memory delivers at best, by its data sheet; 0 where that is not known, as of CPUs.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_preemptions_total",
        kind="counter",
        help="Sequences that lost their blocks and were computed again.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_suffix_cache_tokens", kind="gauge", help="Tokens of recent answers to draft from.", labels=_MODEL
    ),
    Metric(
        name="kvasir_draft_tokens_total",
        kind="counter",
        help="Tokens drafted ahead and verified.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_draft_tokens_accepted_total",
        kind="counter",
        help="Tokens drafted ahead that became part of an answer.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_draft_length_tokens",
        kind="gauge",
        help="Tokens drafted for a sequence in a step, mean of the last steps with drafts.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_draft_acceptance_fraction",
        kind="gauge",
        help="Of the tokens drafted in the last steps with drafts, those that became part of an answer.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_drafting_stopped",
        kind="gauge",
        help="1 while no draft pays or none can be made, with the reason in /state, else 0.",
        labels=_MODEL,
    ),
    *(
        Metric(name=f"kvasir_{name}_steps_total", kind="counter", help=f"Steps of decoding {which}.", labels=_MODEL)
        for name, which in (
            ("undrafted", "without drafts, where --speculation is not off"),
            ("text_drafted", "whose drafts came from texts"),
            ("model_drafted", "with drafts of a model, a head or a layer of the checkpoint"),
        )
    ),
    Metric(
        name="kvasir_kv_token_seconds_total", kind="counter", help="KV token-seconds of ended requests.", labels=_MODEL
    ),
    Metric(
        name="kvasir_tenant_kv_token_seconds_total",
        kind="counter",
        help="Integral over time of the KV cache tokens that each tenant's requests pin.",
        labels=_TENANT,
    ),
    Metric(
        name="kvasir_tenant_prompt_tokens_total",
        kind="counter",
        help="Prompt tokens of requests that began to run, by tenant.",
        labels=_TENANT,
    ),
    Metric(
        name="kvasir_tenant_prefix_hit_tokens_total",
        kind="counter",
        help="Prompt tokens found in the prefix cache, by tenant.",
        labels=_TENANT,
    ),
    Metric(
        name="kvasir_tenant_generation_tokens_total",
        kind="counter",
        help="Tokens generated, by tenant.",
        labels=_TENANT,
    ),
    Metric(
        name="kvasir_invalid_outputs_total",
        kind="counter",
        help="Requests that ended because the model's output was not finite (NaN or infinity).",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_step_memory_failures_total",
        kind="counter",
        help="Steps of the engine for which there was no memory; their requests are computed in smaller steps.",
        labels=_MODEL,
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
    Metric(
        name="kvasir_grammar_compile_seconds",
        kind="histogram",
        help="Trying out a grammar that was not known yet.",
        labels=_MODEL,
        buckets=LATENCY_BUCKETS,
    ),
    Metric(
        name="kvasir_grammars_refused_total",
        kind="counter",
        help="Grammars that were tried out and refused.",
        labels=_MODEL,
    ),
    Metric(
        name="kvasir_requests_rejected_total",
        kind="counter",
        help="Requests that were refused before anything of them was computed, by the code of the error.",
        labels=(*_MODEL, "code"),
    ),
    Metric(name="kvasir_event_loop_tasks", kind="gauge", help="Tasks of the API process's loop.", labels=_MODEL),
)

FINISH_REASONS: Final = ("stop", "length", "abort", "error", "repetition")
SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")
CACHE_CONFIG: Final = (
    "block_size",
    "num_gpu_blocks",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "num_cpu_blocks",
)
"""All values that these labels of the aliases take, so that a hostile client adds no series."""


def _vllm(kind: Kind, name: str, help_text: str, *labels: str, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(
        name=f"vllm:{name}", kind=kind, help=help_text, labels=("model_name", "engine", *labels), buckets=buckets
    )


VLLM: Final[tuple[Metric, ...]] = (
    _vllm("gauge", "num_requests_running", "Alias of kvasir_requests_running."),
    _vllm("gauge", "num_requests_waiting", "Alias of kvasir_requests_waiting."),
    _vllm("gauge", "num_requests_waiting_by_reason", "Waiting requests; all of ours wait for capacity.", "reason"),
    _vllm("gauge", "kv_cache_usage_perc", "Pinned share of the KV cache, 0..1."),
    _vllm("gauge", "gpu_cache_usage_perc", "Deprecated name of vllm:kv_cache_usage_perc, which several operators still read."),
    _vllm("gauge", "engine_sleep_state", "1 for the state that the engine is in; ours is always awake.", "sleep_state"),
    _vllm("gauge", "cache_config_info", "Always 1; the labels describe the KV cache once the model is ready.", *CACHE_CONFIG),
    _vllm("gauge", "avg_generation_throughput_toks_per_s", "Deprecated: generated tokens per second over the last ten seconds. Take the rate of vllm:generation_tokens_total."),
    _vllm("counter", "prefix_cache_queries_total", "Alias of kvasir_prefix_query_tokens_total."),
    _vllm("counter", "prefix_cache_hits_total", "Alias of kvasir_prefix_hit_tokens_total."),
    _vllm("counter", "external_prefix_cache_queries_total", "Prompt tokens looked up in other pods' caches; 0, as there is no such transfer."),
    _vllm("counter", "external_prefix_cache_hits_total", "Prompt tokens found in other pods' caches; 0, as there is no such transfer."),
    _vllm("counter", "mm_cache_queries_total", "Look-ups of media; 0, as only text is served."),
    _vllm("counter", "mm_cache_hits_total", "Media found; 0, as only text is served."),
    _vllm("counter", "num_preemptions_total", "Alias of kvasir_preemptions_total."),
    _vllm("counter", "prompt_tokens_total", "Alias of kvasir_prompt_tokens_total."),
    _vllm("counter", "prompt_tokens_by_source_total", "Prompt tokens of admitted requests, by where their keys and values came from.", "source"),
    _vllm("counter", "prompt_tokens_cached_total", "Prompt tokens that were not computed."),
    _vllm("counter", "generation_tokens_total", "Alias of kvasir_generation_tokens_total."),
    _vllm("counter", "spec_decode_num_draft_tokens_total", "Alias of kvasir_draft_tokens_total."),
    _vllm("counter", "spec_decode_num_accepted_tokens_total", "Alias of kvasir_draft_tokens_accepted_total."),
    _vllm("counter", "request_success_total", "Sequences ended, by reason.", "finished_reason"),
    _vllm("histogram", "time_to_first_token_seconds", "From arrival to the first token.", buckets=LATENCY_BUCKETS),
    _vllm("histogram", "inter_token_latency_seconds", "Between two tokens of one sequence.", buckets=INTERTOKEN_BUCKETS),
    _vllm("histogram", "request_time_per_output_token_seconds", "Mean time between the tokens of one sequence.", buckets=INTERTOKEN_BUCKETS),
    _vllm("histogram", "e2e_request_latency_seconds", "From arrival to the last token.", buckets=DURATION_BUCKETS),
    _vllm("histogram", "request_queue_time_seconds", "In the engine's queue, until the first chunk was planned.", buckets=DURATION_BUCKETS),
    _vllm("histogram", "request_inference_time_seconds", "From the first chunk to the last token.", buckets=DURATION_BUCKETS),
    _vllm("histogram", "request_prefill_time_seconds", "From the first chunk to the first token.", buckets=DURATION_BUCKETS),
    _vllm("histogram", "request_decode_time_seconds", "From the first token to the last.", buckets=DURATION_BUCKETS),
    _vllm("histogram", "request_prompt_tokens", "Prompt tokens of a sequence. Buckets 1, 2, 5, 10 … up to the longest context."),
    _vllm("histogram", "request_generation_tokens", "Tokens generated for a sequence. Buckets as request_prompt_tokens."),
    _vllm("histogram", "request_max_num_generation_tokens", "Tokens of the longest choice of a prompt. Buckets as request_prompt_tokens."),
    _vllm("histogram", "request_params_max_tokens", "Tokens that a sequence may have. Buckets as request_prompt_tokens."),
    _vllm("histogram", "request_prefill_kv_computed_tokens", "Prompt tokens that were computed. Buckets as request_prompt_tokens."),
    _vllm("histogram", "request_num_preemptions", "Preemptions of a request that ended.", buckets=(1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)),
    _vllm("histogram", "request_params_n", "Choices of a prompt.", buckets=(1.0, 2.0, 5.0, 10.0, 20.0)),
    _vllm("histogram", "iteration_tokens_total", "Tokens computed in one step.", buckets=ITERATION_BUCKETS),
)  # fmt: skip
"""What readers of vLLM's metrics expect, by its names, labels and buckets; token_buckets() gives those of tokens. Without LoRA adapters, drafts by position and sampled block lifetimes."""

HTTP: Final[tuple[Metric, ...]] = (
    Metric(name="http_requests_total", kind="counter", help="HTTP requests; handler is the route, status a class such as 2xx.", labels=("handler", "status", "method")),
    Metric(name="http_request_duration_seconds", kind="histogram", help="Until the last byte of the answer.", labels=("handler", "method"), buckets=HTTP_BUCKETS),
    Metric(name="http_request_duration_highr_seconds", kind="histogram", help="The same in finer buckets, over all routes.", buckets=HTTP_FINE_BUCKETS),
)  # fmt: skip
"""The http port's own, under the names that FastAPI's usual instrumentation gives them."""
