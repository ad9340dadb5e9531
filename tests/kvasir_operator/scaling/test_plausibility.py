"""A reading that no pod can have is none."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.state import DecodeTotals, KvState, MeasuredRates, RequestTotals, RuntimeState, ServiceDemand
from kvasir_operator.scaling.plausibility import _in_range, _ranges, contradiction, demand_contradiction, leap

GOOD = RuntimeState(
    phase="ready",
    kv=KvState(capacity_tokens=1000, pinned_tokens=300, cached_tokens=200, free_tokens=500),
    running=3,
    waiting=2,
    waiting_uncached_tokens=500,
    max_sequences=8,
    max_model_len=400,
    totals=RequestTotals(arrivals=20, completions=14, aborts=1, uncached_prompt_tokens=5_000),
    rates=MeasuredRates(prefill_tokens_per_s=900.0, decode_step_s=0.05),
    decoded=DecodeTotals(steps=5, seconds=0.2, rows=9),
)
NUMBERS = [
    *(("kv", name) for name in ("capacity_tokens", "pinned_tokens", "cached_tokens", "free_tokens")),
    *(("", name) for name in ("running", "waiting", "waiting_uncached_tokens")),
    *(("totals", name) for name in ("arrivals", "completions", "aborts", "uncached_prompt_tokens")),
    ("rates", "prefill_tokens_per_s"),
    ("rates", "decode_step_s"),
]

LONG = [pytest.param(10**400, id="long"), pytest.param(-(10**400), id="minus-long")]


def altered(part, name, value):
    if not part:
        return msgspec.structs.replace(GOOD, **{name: value})
    return msgspec.structs.replace(GOOD, **{part: msgspec.structs.replace(getattr(GOOD, part), **{name: value})})


def test_what_a_pod_says_is_believed():
    assert contradiction(GOOD) == ""
    assert contradiction(RuntimeState()) == ""
    assert contradiction(RuntimeState(kv=KvState(capacity_tokens=1000, pinned_tokens=300))) == ""


@pytest.mark.parametrize("value", [10**9, -1, float("nan"), float("inf"), *LONG])
@pytest.mark.parametrize(("part", "name"), NUMBERS)
def test_a_number_that_cannot_be_is_named(part, name, value):
    assert contradiction(altered(part, name, value))


def test_the_sentence_names_the_number():
    assert contradiction(altered("kv", "pinned_tokens", 10**9)) == "1000000000 pinned tokens of 1000"
    assert contradiction(altered("", "running", -1)) == "running is -1"
    assert contradiction(altered("served", "refused", -1)) == "refused is -1"
    assert contradiction(altered("ttft", "expired", 2)) == "2 expired requests of 1 aborted ones"
    assert contradiction(altered("", "waiting", 6)) == "6 waiting requests of 5 that were accepted and have not ended"


def test_a_speed_next_to_nothing_is_no_speed():
    """A replica that computes so little would need more of them than a number holds."""
    assert contradiction(altered("rates", "prefill_tokens_per_s", 5e-324)) == "prefill_tokens_per_s is 4.94066e-324"
    assert contradiction(altered("rates", "prefill_tokens_per_s", 0.0)) == ""


def test_running_sequences_have_a_bound_where_none_is_said():
    unbounded = altered("", "max_sequences", 0)
    said = contradiction(msgspec.structs.replace(unbounded, running=10**9))
    assert said == "1000000000 running requests"


def later(**more):
    """GOOD with counters that have grown, of the process `a`."""
    grown = {name: getattr(GOOD.totals, name) + count for name, count in more.items()}
    totals = msgspec.structs.replace(GOOD.totals, **grown)
    return msgspec.structs.replace(GOOD, instance="a", totals=totals)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"arrivals": 30_000, "completions": 30_000}, ""),
        (
            {"arrivals": 10**9, "completions": 10**9},
            "1000000000 more arrivals and 1000000000 more completions within 3 s",
        ),
        ({"generation_tokens": 10**12}, "1000000000000 more generated tokens within 3 s"),
        ({"arrivals": 2, "uncached_prompt_tokens": 800}, ""),
        ({"arrivals": 2, "uncached_prompt_tokens": 801}, "801 more prompt tokens of 2 more requests"),
        ({"arrivals": -1}, "arrivals fell from 20 to 19"),
        ({"completions": -1}, "completions fell from 14 to 13"),
    ],
)
def test_counters_grow_no_faster_than_there_can_be_requests(more, said):
    assert leap(later(), later(**more), 2.0) == said


def test_a_process_that_restarted_counts_from_zero():
    """So its counters may be smaller, and all that it has counted it counted since."""
    other = msgspec.structs.replace(later(), instance="b", totals=RequestTotals(arrivals=3, completions=1))
    assert leap(later(), other, 2.0) == ""
    busy = msgspec.structs.replace(other, totals=RequestTotals(arrivals=10**6, completions=10**6))
    assert leap(later(), busy, 2.0) == "1000000 more arrivals and 1000000 more completions within 3 s"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"held": 500, "held_bytes": 10**9, "inflight": 2_000, "last_request_age_s": 0.0}, ""),
        ({"held": -5}, "held is -5"),
        ({"held": 10**9}, "held is 1000000000"),
        ({"held": 10**400}, "held is above 2^53"),
        ({"held_bytes": -1}, "held_bytes is -1"),
        ({"inflight": -1}, "inflight is -1"),
        ({"shed": 10**12, "expired": 10**12, "abandoned": 10**12, "held_retried": 10**12}, ""),
        ({"shed": -1}, "shed is -1"),
        ({"held_retried": 10**400}, "held_retried is above 2^53"),
    ],
)
def test_what_a_gateway_says_is_looked_at_too(fields, said):
    assert demand_contradiction(ServiceDemand(namespace="a", name="b", **fields)) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param(10**400, "above 2^53", id="long"),
        pytest.param(-(10**400), "below -2^53", id="minus-long"),
    ],
)
def test_a_number_of_any_length_is_told_in_few_words(value, said):
    """JSON bounds no integer, and one of 400 digits is no float."""
    assert contradiction(altered("kv", "pinned_tokens", value)) == f"pinned_tokens is {said}"
    assert contradiction(altered("", "max_model_len", value)) == f"max_model_len is {said}"


@given(
    where=st.sampled_from([*NUMBERS, ("totals", "kv_token_seconds"), ("decoded", "seconds"), ("served", "refused")]),
    value=st.one_of(
        st.sampled_from([0, -1, -0.0, 2**53, 2**53 + 1, 10**400, float("nan"), float("inf"), 1e8, 1.1e8]),
        st.integers(),
        st.floats(),
    ),
)
def test_the_quick_look_at_ranges_says_what_the_long_one_says(where, value):
    reading = altered(*where, value)
    assert _in_range(reading) == (not any(wrong for _, wrong in _ranges(reading)))
