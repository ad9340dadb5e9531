"""/metrics of a served process against vLLM's own table, written out here, and against clients who want to fill it."""

import contextlib
import http.client

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes import checkpoints
from fakes.api_process import JSON, api_process

pytestmark = pytest.mark.xdist_group("server-metrics")  # its process is shared by the tests of this file

FIRST = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)  # up to the longest context, 4096 here
STEPS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = [1, 2, 3, 4, 5, 10, 20]
CACHE = {
    "block_size",
    "num_gpu_blocks",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "num_cpu_blocks",
}

# Type, labels beside model_name and engine, buckets; of vLLM without adapters, drafts by position and optional samples.
VLLM = {
    "num_requests_running": ("gauge", set(), ()),
    "num_requests_waiting": ("gauge", set(), ()),
    "avg_generation_throughput_toks_per_s": ("gauge", set(), ()),
    "num_requests_waiting_by_reason": ("gauge", {"reason"}, ()),
    "kv_cache_usage_perc": ("gauge", set(), ()),
    "gpu_cache_usage_perc": ("gauge", set(), ()),
    "engine_sleep_state": ("gauge", {"sleep_state"}, ()),
    "cache_config_info": ("gauge", CACHE, ()),
    "spec_decode_num_draft_tokens": ("counter", set(), ()),
    "spec_decode_num_accepted_tokens": ("counter", set(), ()),
    "prefix_cache_queries": ("counter", set(), ()),
    "prefix_cache_hits": ("counter", set(), ()),
    "external_prefix_cache_queries": ("counter", set(), ()),
    "external_prefix_cache_hits": ("counter", set(), ()),
    "mm_cache_queries": ("counter", set(), ()),
    "mm_cache_hits": ("counter", set(), ()),
    "num_preemptions": ("counter", set(), ()),
    "prompt_tokens": ("counter", set(), ()),
    "prompt_tokens_by_source": ("counter", {"source"}, ()),
    "prompt_tokens_cached": ("counter", set(), ()),
    "generation_tokens": ("counter", set(), ()),
    "request_success": ("counter", {"finished_reason"}, ()),
    "time_to_first_token_seconds": ("histogram", set(), FIRST),
    "inter_token_latency_seconds": ("histogram", set(), BETWEEN),
    "request_time_per_output_token_seconds": ("histogram", set(), BETWEEN),
    "e2e_request_latency_seconds": ("histogram", set(), WHOLE),
    "request_queue_time_seconds": ("histogram", set(), WHOLE),
    "request_inference_time_seconds": ("histogram", set(), WHOLE),
    "request_prefill_time_seconds": ("histogram", set(), WHOLE),
    "request_decode_time_seconds": ("histogram", set(), WHOLE),
    "request_prompt_tokens": ("histogram", set(), TOKENS),
    "request_generation_tokens": ("histogram", set(), TOKENS),
    "request_max_num_generation_tokens": ("histogram", set(), TOKENS),
    "request_params_max_tokens": ("histogram", set(), TOKENS),
    "request_prefill_kv_computed_tokens": ("histogram", set(), TOKENS),
    "request_params_n": ("histogram", set(), CHOICES),
    "request_num_preemptions": ("histogram", set(), PREEMPTIONS),
    "iteration_tokens_total": ("histogram", set(), STEPS),
}
VALUES = {
    "reason": {"capacity", "deferred"},
    "sleep_state": {"awake", "weights_offloaded", "discard_all"},
    "source": {"local_compute", "local_cache_hit", "external_kv_transfer"},
    "finished_reason": {"stop", "length", "abort", "error", "repetition"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "tiny")
    with api_process(folder, "--served-model-name", "tiny") as running:
        assert running.ask("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2}).status == 200
        yield running


def families(server):
    return {family.name: family for family in text_string_to_metric_families(server.ask("/metrics").body.decode())}


def test_the_aliases_are_vllms_families_and_no_others(server):
    found = {
        name.removeprefix("vllm:"): family for name, family in families(server).items() if name.startswith("vllm:")
    }
    assert set(found) == set(VLLM)


@pytest.mark.parametrize("name", VLLM)
def test_an_alias_has_vllms_type_labels_and_buckets(server, name):
    kind, labels, buckets = VLLM[name]
    family = families(server)[f"vllm:{name}"]
    assert family.type == kind
    assert {label for sample in family.samples for label in sample.labels} - {"le"} == {"model_name", "engine", *labels}
    assert {(sample.labels["model_name"], sample.labels["engine"]) for sample in family.samples} == {("tiny", "0")}
    bounds = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
    assert bounds == ([*buckets, float("inf")] if buckets else [])
    assert {sample.name.removeprefix(f"vllm:{name}") for sample in family.samples} == {
        "gauge": {""},
        "counter": {"_total"},
        "histogram": {"_bucket", "_count", "_sum"},
    }[kind]
    for label in labels & set(VALUES):
        assert {sample.labels[label] for sample in family.samples} == VALUES[label]


def test_clients_add_no_series_beyond_the_routes_and_methods_that_there_are(server):
    def hostile(number):
        """Everything that a client can write somewhere, different each time."""
        model = f"model-{number}"
        headers = {
            **JSON,
            "x-request-id": f"id-{number}",
            "user-agent": f"agent-{number}",
            "authorization": f"Bearer {number}",
        }
        for path in (f"/v1/{number}", f"/{number}?a={number}", f"/v1/models/{model}", f"/v1/responses/{number}"):
            server.ask(path, headers=headers)
        server.ask("/v1/completions", {"model": model, "prompt": "a", "user": model}, headers=headers)
        server.ask("/v1/completions", {"model": "tiny", "prompt": "a", "user": model, "max_tokens": 1}, headers=headers)
        server.ask("/v1/embeddings", {"model": model, "input": "a"}, headers=headers)
        connection = http.client.HTTPConnection(*server.http, timeout=60)
        with contextlib.closing(connection):
            connection.request(f"VERB{number}", "/v1/completions")
            connection.getresponse().read()

    def series():
        return {
            (sample.name, *sorted(sample.labels.items()))
            for family in families(server).values()
            for sample in family.samples
        }

    for number in range(3):
        hostile(number)
    before = series()
    for number in range(3, 40):
        hostile(number)
    assert series() == before
    methods = {dict(labels)["method"] for _, *labels in before if "method" in dict(labels)}
    assert methods <= {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "other"}
    handlers = {dict(labels)["handler"] for _, *labels in before if "handler" in dict(labels)}
    assert not [handler for handler in handlers if any(character.isdigit() for character in handler.replace("v1", ""))]
