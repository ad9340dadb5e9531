"""Over how many pods a replica on processors lies, by its model, options and memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.models import facts
from kvasir_api.options import RuntimeOptions
from kvasir_api.pod_layouts import over_pods

GIB = 1 << 30
OPTIONS = RuntimeOptions(max_model_len=8192, dtype="bfloat16")
"""Of LLAMA_8B: 15 GiB of weights, 1 GiB of cache for a request of the longest length."""


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
