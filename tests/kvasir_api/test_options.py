"""Options are declared once; flags, arguments and help derive from the declaration."""

import click
import pytest
from pydantic import ValidationError

from kvasir_api import flags, option_parser
from kvasir_api.options import RuntimeOptions, ServeOptions

CHANGED = {
    "dtype": "float32",
    "max_model_len": 4096,
    "kv_cache_dtype": "int8",
    "quantization": "int4",
    "kv_cache_tokens": 1024,
    "memory_percent": 85,
    "block_size": 32,
    "prefix_cache": False,
    "prefix_warmup_seconds": 30,
    "cuda_graphs": False,
    "batch_invariant": True,
    "speculation": "auto",
    "kv_host_bytes": 1 << 30,
    "weights_host_bytes": 4_096,
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "enable_expert_parallel": True,
    "enable_eplb": True,
    "eplb_config": '{"window_size": 100}',
    "data_parallel_size": 2,
    "max_batch_tokens": 256,
    "max_sequences": 7,
    "max_waiting": 3,
    "max_waiting_seconds": 5,
    "max_waiting_tokens": 4096,
    "ttft_milliseconds": 2000,
    "tool_call_parser": "hermes",
    "reasoning_parser": "qwen3",
    "generation_config": "none",
    "hf_overrides": '{"max_position_embeddings": 8192}',
    "pooling": "mean",
    "normalize": "never",
    "matryoshka": True,
    "scoring": "yes-no",
    "revision": "v1.0",
    "suffix_decoding_max_cached_requests": 64,
    "model_impl": "transformers",
    "nnodes": 2,
    "node_rank": 1,
    "master_addr": "10.0.0.6",
    "master_port": 29502,
    "node_key_file": "/node-key",
    "node_group": "chat-0",
    "chat_template": "template.jinja",
    "served_model_name": ("a", "b"),
    "host": "127.0.0.2",
    "port": 9000,
    "ops_port": 9001,
    "device": "cpu",
    "api_key": ("k",),
    "api_key_file": "/keys",
    "tenant_header": "x-tenant",
    "most_urgent_priority": -3,
    "tenant_weights": "a=2",
    "shared_prefix_cache": True,
    "cors_origin": ("*",),
    "root_path": "/models/a",
    "max_body_bytes": 2048,
    "strict_fields": True,
    "stored_response_bytes": 4096,
    "drain_timeout": 5,
    "watchdog_timeout": 90,
    "continuation_key_file": "/continuation",
    "ops_key_file": "/ops-keys",
    "tls_dir": "/tls",
    "log_format": "json",
    "trace": "plans.bin",
    "profile": "steps.json",
    "otlp_traces_endpoint": "http://127.0.0.1:4318",
    "otlp_sample_percent": 5,
    "startup_cache": "plans",
    "kv_host_dir": "kv",
    "kv_transfer_port": 9002,
    "pod_revision": "r1",
}


def _parsed(arguments: list[str]) -> ServeOptions:
    found: dict[str, object] = {}
    serve = click.Command(
        "serve",
        params=list(option_parser.click_options(ServeOptions, skip=frozenset({"model"}))),
        callback=lambda **values: found.update(values),
    )
    serve.main(arguments, standalone_mode=False)
    return ServeOptions.model_validate({"model": "m", **found})


def test_changed_covers_every_option() -> None:
    assert set(CHANGED) == set(ServeOptions.model_fields) - {"model"}


@pytest.mark.parametrize("name", sorted(CHANGED))
def test_arguments_reproduce_each_option(name: str) -> None:
    beside = {
        "nnodes": {"tensor_parallel_size": 2},
        "enable_eplb": {"enable_expert_parallel": True},
        "eplb_config": {"enable_expert_parallel": True, "enable_eplb": True},
    }
    given = ServeOptions.model_validate({"model": "m", name: CHANGED[name], **beside.get(name, {})})
    arguments = list(flags.arguments(given))
    assert arguments, f"{name} gives no argument"
    assert _parsed(arguments) == given


def test_defaults_need_no_arguments() -> None:
    assert flags.arguments(RuntimeOptions()) == ()
    assert _parsed([]) == ServeOptions(model="m")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--memory-fraction", "much"], "not a number"),
        (["--block-size", "17"], "block-size"),
        (["--max-sequences", "0"], "max-sequences"),
        (["--port", "70000"], "port"),
        (["--dtype", "int3"], "dtype"),
    ],
)
def test_bad_argument_is_named(arguments: list[str], words: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        _parsed(arguments)
    assert words in caught.value.format_message()


def test_contradiction_is_described_in_one_line() -> None:
    with pytest.raises(ValidationError) as caught:
        ServeOptions(model="m", max_batch_tokens=8, block_size=16)
    assert option_parser.describe(caught.value) == "maxBatchTokens 8 is less than blockSize 16"
    with pytest.raises(ValidationError) as caught:
        ServeOptions(model="m", kv_host_bytes=1, tensor_parallel_size=2)
    assert option_parser.describe(caught.value).startswith("kvHostBytes needs one rank")


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({"tensor_parallel_size": 2}, "tensorParallelSize 2"),
        ({"pipeline_parallel_size": 3}, "pipelineParallelSize 3"),
        ({"tensor_parallel_size": 2, "nnodes": 2}, "tensorParallelSize 2 and nnodes 2"),
        ({"speculation": "/drafter"}, "speculation /drafter, since a draft model has a block for each of all ranks"),
    ],
)
def test_what_data_parallelism_does_not_go_with_is_named(beside: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ServeOptions.model_validate({"model": "m", "data_parallel_size": 2, **beside})
    why = f"dataParallelSize 2 cannot be used with {named}: leave out one of both"
    assert option_parser.describe(caught.value) == why
    assert ServeOptions(model="m", data_parallel_size=2, speculation="auto", enable_expert_parallel=True).ranks == 2
