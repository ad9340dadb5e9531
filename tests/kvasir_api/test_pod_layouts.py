"""Over how many pods a replica on processors lies, by its model, options and memory."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.models import LLAMA_8B, QWEN3_30B, facts
from kvasir_api import forecast, inspection
from kvasir_api.options import RuntimeOptions
from kvasir_api.pod_layouts import over_pods

GIB = 1 << 30
OPTIONS = RuntimeOptions(max_model_len=8192, dtype="bfloat16")
"""Of LLAMA_8B: 15 GiB of weights, 1 GiB of cache for a request of the longest length."""

GEMMA = LLAMA_8B | {"model_type": "gemma3_text", "sliding_window": 1024, "num_hidden_layers": 48}


def pods(memory: int, options: RuntimeOptions = OPTIONS, **fields: object) -> list[int]:
    found = over_pods(facts(**fields), options, memory)
    return [one.layout.stages for one in found if one.chosen]


@pytest.mark.parametrize(("gib", "want"), [(64, [1]), (24, [1]), (17, [2]), (12, [2]), (8, [3]), (6, [4]), (2, [])])
def test_as_few_pods_as_hold_the_longest_request(gib: int, want: list[int]) -> None:
    assert pods(gib * GIB) == want


def test_a_cache_of_a_size_that_is_set_counts_whole() -> None:
    assert pods(24 * GIB) == [1]
    assert pods(24 * GIB, OPTIONS.model_copy(update={"kv_cache_tokens": 65_536})) == [2]


def test_in_fewer_bits_a_model_needs_fewer_pods() -> None:
    assert pods(8 * GIB, OPTIONS.model_copy(update={"quantization": "int4"})) == [1]


def test_what_cannot_be_divided_has_no_layouts() -> None:
    assert over_pods(facts(supported=False), OPTIONS, GIB) == ()
    encoder = replace(facts().shape, attentions=(), group_layers=())
    assert not encoder.keeps_nothing or over_pods(facts(shape=encoder), OPTIONS, GIB) == ()
    few = replace(facts().shape, layers=2, group_layers=(2,))
    assert [one.layout.stages for one in over_pods(facts(shape=few), OPTIONS, GIB)] == [1, 2]


@given(st.integers(1, 200), st.integers(1, 200))
def test_more_memory_never_takes_more_pods(one: int, other: int) -> None:
    few, many = sorted((one, other))
    small, large = pods(few * GIB), pods(many * GIB)
    assert large or not small
    assert not small or large[0] <= small[0]


@pytest.mark.parametrize("config", [LLAMA_8B, QWEN3_30B, GEMMA], ids=lambda config: config["model_type"])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_service_with_as_many_stages_is_forecast_alike(config: dict[str, Any], stages: int) -> None:
    read = facts(shape=forecast.shape(config))
    found = {one.layout.stages: one for one in over_pods(read, OPTIONS, 96 * GIB)}
    sizes = {"pipeline_parallel_size": stages, "nnodes": stages}
    memory_bytes = stages * 96 * GIB
    told = inspection.predicted(read, OPTIONS.model_copy(update=sizes), device="cpu", memory_bytes=memory_bytes)
    assert (told.verdict, told.kv_tokens) == ("Fits", found[stages].kv_tokens // 16 * 16)
    assert told.weights_bytes == read.shape.weights_bytes("bfloat16")
    fixed = OPTIONS.model_copy(update=sizes | {"kv_cache_tokens": told.kv_tokens})
    assert inspection.predicted(read, fixed, device="cpu", memory_bytes=memory_bytes).verdict == "Fits"
    more = fixed.model_copy(update={"kv_cache_tokens": 2 * told.kv_tokens})
    assert inspection.predicted(read, more, device="cpu", memory_bytes=memory_bytes).verdict == "TooSmall"


def test_more_stages_than_layers_are_not_forecast() -> None:
    few = facts(shape=forecast.shape(LLAMA_8B | {"num_hidden_layers": 3}))
    options = OPTIONS.model_copy(update={"pipeline_parallel_size": 4})
    told = inspection.predicted(few, options, device="cpu", memory_bytes=64 * GIB)
    said = "--pipeline-parallel-size 4 is not possible: 3 layers are fewer than 4 stages"
    assert (told.verdict, told.message) == ("Unknown", said)
