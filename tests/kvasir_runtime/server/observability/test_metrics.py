"""The exposition: every declared family with its labels and buckets, readable and clean."""

import asyncio
import os
import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.engine_facts import engine_facts
from kvasir_api import machine_metrics, metrics
from kvasir_api.options import ServeOptions
from kvasir_api.state import KvState, MeasuredRates, RequestTotals, RuntimeState, WorkTotals
from kvasir_runtime.engine_reports import TenantUsage
from kvasir_runtime.server.observability.metrics import FROM_STATE, RuntimeMetrics
from kvasir_runtime.server.observability.request_metrics import SequenceStats

STATE = RuntimeState(
    phase="ready",
    kv=KvState(capacity_tokens=1000, pinned_tokens=250, cached_tokens=150, free_tokens=600),
    running=3,
    waiting=2,
    totals=RequestTotals(
        prompt_tokens=90,
        generation_tokens=40,
        prefix_query_tokens=80,
        prefix_hit_tokens=30,
        preemptions=4,
        drafted_tokens=12,
        accepted_tokens=9,
        prefix_saved_s=1.5,
    ),
    work=WorkTotals(seconds=9.0, flops=4e12, read_bytes=5e11),
    rates=MeasuredRates(prefill_tokens_per_s=100.0),
)
READY = engine_facts(
    kernels="reference", dtype="bfloat16", block_size=16, num_blocks=100, max_model_len=300, max_sequences=8
)
BASE = {"model_name": "m", "engine": "0"}
ENDED = SequenceStats(
    reason="stop",
    duration_s=4.0,
    queue_s=1.0,
    prefill_s=0.5,
    decode_s=2.0,
    prompt_tokens=20,
    cached_tokens=16,
    generation_tokens=5,
    max_tokens=64,
)
# What promtool says of names that are vLLM's and not ours to change.
KNOWN_COMPLAINTS = re.compile(
    r"^vllm:\S+ (metric names should not contain (':'|abbreviated units)"
    r'|non-counter metrics should not have "_total" suffix)'
)


@pytest.fixture
def counted():
    made = RuntimeMetrics("m", lambda: STATE)
    made.opened(READY, ServeOptions(model="x", memory_percent=80))
    made.tenants.used({"a": TenantUsage(prompt_tokens=20)})
    made.first_token(0.2)
    made.tokens(4, 2.0)
    made.ended(ENDED)
    made.answered(2, 5)
    made.step(24)
    made.rejected("overloaded")
    made.http("/v1/completions", "POST", 200, 0.3)
    return made


def families(made):
    return {family.name: family for family in text_string_to_metric_families(made.exposition().decode())}


def value(made, name, **labels):
    base = BASE if name.startswith("vllm:") else {"model_name": "m"}
    found = [
        sample.value
        for family in families(made).values()
        for sample in family.samples
        if sample.name == name and sample.labels == {**base, **labels}
    ]
    assert len(found) == 1, (name, labels)
    return found[0]


def test_every_declared_family_is_exposed_with_its_kind_and_labels(counted):
    found = families(counted)
    for metric in (*metrics.RUNTIME, *metrics.VLLM, *metrics.HTTP):
        family = found.pop(metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name)
        assert family.type == metric.kind
        assert family.documentation == metric.help
        assert family.samples, metric.name
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert labels == set(metric.labels)
        buckets = metric.buckets or metrics.token_buckets(READY.max_model_len)
        if metric.kind == "histogram":
            bounds = {float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")}
            assert bounds == {*buckets, float("inf")}
    for metric in machine_metrics.PROCESS:
        assert found.pop(metric.name.removesuffix("_total")).type == metric.kind
    assert found == {}


@pytest.mark.parametrize(
    ("name", "labels", "want"),
    [
        ("kvasir_prefix_saved_seconds_total", {}, 1.5),
        ("kvasir_engine_busy_seconds_total", {}, 9.0),
        ("kvasir_model_flops_total", {}, 4e12),
        ("kvasir_model_read_bytes_total", {}, 5e11),
        ("kvasir_device_peak_flops_per_second", {}, 0),
        ("vllm:num_requests_running", {}, 3),
        ("vllm:num_requests_waiting", {}, 2),
        ("vllm:num_requests_waiting_by_reason", {"reason": "capacity"}, 2),
        ("vllm:num_requests_waiting_by_reason", {"reason": "deferred"}, 0),
        ("vllm:kv_cache_usage_perc", {}, 0.25),
        ("vllm:gpu_cache_usage_perc", {}, 0.25),
        ("vllm:engine_sleep_state", {"sleep_state": "awake"}, 1),
        ("vllm:engine_sleep_state", {"sleep_state": "discard_all"}, 0),
        ("vllm:prefix_cache_queries_total", {}, 80),
        ("vllm:prefix_cache_hits_total", {}, 30),
        ("vllm:num_preemptions_total", {}, 4),
        ("vllm:prompt_tokens_total", {}, 90),
        ("vllm:prompt_tokens_by_source_total", {"source": "local_compute"}, 50),
        ("vllm:prompt_tokens_by_source_total", {"source": "local_cache_hit"}, 30),
        ("vllm:prompt_tokens_cached_total", {}, 30),
        ("vllm:generation_tokens_total", {}, 40),
        ("vllm:spec_decode_num_draft_tokens_total", {}, 12),
        ("vllm:spec_decode_num_accepted_tokens_total", {}, 9),
        ("vllm:request_success_total", {"finished_reason": "stop"}, 1),
        ("vllm:request_success_total", {"finished_reason": "repetition"}, 0),
        ("vllm:time_to_first_token_seconds_sum", {}, 0.2),
        ("vllm:inter_token_latency_seconds_count", {}, 4),
        ("vllm:inter_token_latency_seconds_sum", {}, 2.0),
        ("vllm:request_time_per_output_token_seconds_sum", {}, 0.5),
        ("vllm:e2e_request_latency_seconds_sum", {}, 4.0),
        ("vllm:request_queue_time_seconds_sum", {}, 1.0),
        ("vllm:request_prefill_time_seconds_sum", {}, 0.5),
        ("vllm:request_decode_time_seconds_sum", {}, 2.0),
        ("vllm:request_inference_time_seconds_sum", {}, 2.5),
        ("vllm:request_prompt_tokens_sum", {}, 20),
        ("vllm:request_generation_tokens_sum", {}, 5),
        ("vllm:request_max_num_generation_tokens_sum", {}, 5),
        ("vllm:request_params_max_tokens_sum", {}, 64),
        ("vllm:request_params_n_sum", {}, 2),
        ("vllm:request_prefill_kv_computed_tokens_sum", {}, 4),
        ("vllm:iteration_tokens_total_sum", {}, 24),
        ("kvasir_requests_total", {"finish_reason": "stop"}, 1),
    ],
)
def test_aliases_say_what_we_know(counted, name, labels, want):
    assert value(counted, name, **labels) == want


def test_the_cache_is_described_in_vllms_words(counted):
    sample = families(counted)["vllm:cache_config_info"].samples[0]
    assert sample.labels == {
        **BASE,
        "block_size": "16",
        "num_gpu_blocks": "100",
        "cache_dtype": "bfloat16",
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.8",
        "num_cpu_blocks": "None",
    }


def test_a_sequence_that_never_ran_is_counted_without_times(counted):
    counted.ended(SequenceStats(reason="abort", duration_s=9.0, prompt_tokens=20))
    assert value(counted, "vllm:request_success_total", finished_reason="abort") == 1
    assert value(counted, "vllm:e2e_request_latency_seconds_count") == 2
    for name in ("queue", "prefill", "decode", "inference"):
        assert value(counted, f"vllm:request_{name}_time_seconds_count") == 1


def test_before_the_model_is_ready_nothing_is_made_up():
    made = RuntimeMetrics("m", RuntimeState)
    made.first_token(1.0)
    made.step(5)
    found = families(made)
    assert "vllm:cache_config_info" not in found
    assert "vllm:time_to_first_token_seconds" not in found
    assert found["vllm:num_requests_running"].samples[0].value == 0
    assert found["vllm:kv_cache_usage_perc"].samples[0].value == 0


def test_what_is_read_from_the_snapshot_is_declared():
    assert set(FROM_STATE) <= {metric.name for metric in metrics.RUNTIME}


@pytest.mark.parametrize(
    ("largest", "want"),
    [(1, (1.0,)), (10, (1.0, 2.0, 5.0, 10.0)), (300, (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0))],
)
def test_token_buckets_are_1_2_5(largest, want):
    assert metrics.token_buckets(largest) == want


def test_the_exposition_is_clean_but_for_names_that_are_not_ours(counted):
    for name, family in families(counted).items():
        assert family.documentation
        if not name.startswith("vllm:"):
            assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
            assert not name.endswith("_total")
        assert not re.search(r"_(gauge|counter|histogram|milliseconds|ms|kilobytes|percent)$", name)
        series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(series) == len(set(series)), f"{name} has a series twice"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: apt install prometheus) is not here")
def test_promtool_finds_nothing_else(counted):
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=counted.exposition(), capture_output=True, timeout=20, check=False
    )
    complaints = (check.stdout + check.stderr).decode().splitlines()
    assert [line for line in complaints if line.strip() and not KNOWN_COMPLAINTS.match(line)] == []


def test_a_known_card_has_its_peak_and_the_engine_its_process():
    made = RuntimeMetrics("m", lambda: STATE)
    made.engine_pid = os.getpid()
    made.opened(engine_facts(device="NVIDIA H200", dtype="bfloat16"), ServeOptions(model="x"))
    assert value(made, "kvasir_device_peak_flops_per_second") == 989e12
    assert value(made, "kvasir_device_peak_bytes_per_second") == 4800e9
    found = families(made)
    for metric in machine_metrics.of_both_processes():
        assert found[metric.name.removesuffix("_total")].documentation == metric.help
    assert found["kvasir_engine_process_resident_memory_bytes"].samples[0].value > 1 << 20


async def test_tasks_of_the_event_loop_are_counted():
    made = RuntimeMetrics("m", lambda: STATE)
    before = value(made, "kvasir_event_loop_tasks")
    async with asyncio.TaskGroup() as group:
        more = [group.create_task(asyncio.Event().wait()) for _ in range(3)]
        assert value(made, "kvasir_event_loop_tasks") == before + 3
        for task in more:
            task.cancel()
    assert value(made, "kvasir_event_loop_tasks") == before


def test_the_mean_of_generated_tokens_is_over_ten_seconds():
    now, generated = 100.0, 0
    made = RuntimeMetrics("m", lambda: RuntimeState(totals=RequestTotals(generation_tokens=generated)), lambda: now)
    name = "vllm:avg_generation_throughput_toks_per_s"
    assert value(made, name) == 0.0
    for _ in range(30):
        now, generated = now + 1.0, generated + 50
        made.step(1)
    assert value(made, name) == 50.0
    now += 5.0
    assert value(made, name) == 25.0
    now += 20.0
    assert value(made, name) == 0.0


@pytest.mark.parametrize(
    ("method", "status", "retried", "want"),
    [
        pytest.param("POST", 200, False, (0, 0), id="taken"),
        pytest.param("POST", 200, True, (0, 1), id="taken when it was sent again"),
        pytest.param("POST", 429, False, (1, 0), id="refused"),
        pytest.param("POST", 429, True, (1, 1), id="refused again"),
        pytest.param("POST", 400, True, (0, 0), id="of no use at any time"),
        pytest.param("GET", 200, True, (0, 0), id="nothing to compute"),
    ],
)
def test_refusals_and_tries_are_counted_for_the_autoscaler(method, status, retried, want):
    made = RuntimeMetrics("m", lambda: STATE)
    made.http("/v1/completions", method, status, 0.1, retried)
    assert (made.served.refused, made.served.retried) == want
