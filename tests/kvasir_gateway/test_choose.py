"""The choice of an endpoint: costs in seconds, the bound, ties, missing readings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_gateway.choose import Candidate, ChoicePolicy, EndpointLoad, choose

POLICY = ChoicePolicy()


def candidate(address, *, age_s=0.1, inflight=0, recent=0, recent_tokens=0, **said):
    load = EndpointLoad(age_s=age_s, **{"prefill_tokens_per_s": 1000.0, "decode_step_s": 0.02, **said})
    return Candidate(address=address, inflight=inflight, recent=recent, recent_tokens=recent_tokens, load=load)


def blind(address, inflight=0):
    return Candidate(address=address, inflight=inflight)


CASES = {
    "less queued prompt": (
        [candidate("a", waiting_uncached_tokens=4000), candidate("b", waiting_uncached_tokens=100)],
        ("b", "a"),
        "cheapest",
    ),
    "the same queue on a faster pod": (
        [
            candidate("a", waiting_uncached_tokens=4000),
            candidate("b", waiting_uncached_tokens=4000, prefill_tokens_per_s=9000.0),
        ],
        ("b", "a"),
        "cheapest",
    ),
    "fewer sequences beside": (
        [candidate("a", running=2, decode_step_s=0.2), candidate("b", running=1, decode_step_s=0.2)],
        ("b", "a"),
        "cheapest",
    ),
    "what was sent since the reading counts": (
        [candidate("a", inflight=1, recent=1, recent_tokens=5000), candidate("b", running=1)],
        ("b", "a"),
        "cheapest",
    ),
    "an old reading costs its age": (
        [candidate("a", age_s=6.0), candidate("b", waiting_uncached_tokens=3000)],
        ("b", "a"),
        "cheapest",
    ),
    "a pod without a reading comes last": (
        [blind("a"), candidate("b", running=9, waiting_uncached_tokens=90_000)],
        ("b", "a"),
        "cheapest",
    ),
    "the cheapest has too many requests": (
        [
            candidate("a", running=20, decode_step_s=0.001),
            candidate("b", running=2, waiting_uncached_tokens=2000),
            candidate("c", running=1, waiting_uncached_tokens=9000),
        ],
        ("b", "c", "a"),
        "bounded",
    ),
    "one endpoint": ([candidate("a", running=500)], ("a",), "only"),
    "nobody has a reading": ([blind("a", 3), blind("b", 1), blind("c", 2)], ("b", "c", "a"), "no_reading"),
}


@pytest.mark.parametrize(("candidates", "addresses", "reason"), CASES.values(), ids=CASES.keys())
def test_cost_in_seconds_orders_the_endpoints(candidates, addresses, reason):
    choice = choose(candidates, prompt_tokens=100, policy=POLICY, seed=0)
    assert (choice.addresses, choice.reason) == (addresses, reason)


def test_unmeasured_speeds_are_assumed():
    fresh = candidate("a", prefill_tokens_per_s=0.0, decode_step_s=0.0, waiting_uncached_tokens=1000)
    slower = candidate("b", waiting_uncached_tokens=3000)
    assert choose([slower, fresh], prompt_tokens=10, policy=POLICY, seed=0).addresses[0] == "a"


@pytest.mark.parametrize(("seed", "first"), [(0, "a"), (1, "b"), (2, "c"), (3, "a")])
def test_equal_costs_are_drawn(seed, first):
    choice = choose([candidate(name) for name in "abc"], prompt_tokens=50, policy=POLICY, seed=seed)
    assert (choice.addresses[0], choice.reason) == (first, "tie")


def test_of_two_drawn_the_one_with_fewer_requests_is_taken():
    near = [candidate("a", inflight=2), candidate("b", inflight=1)]
    firsts = {choose(near, prompt_tokens=50, policy=POLICY, seed=seed).addresses[0] for seed in range(8)}
    assert firsts == {"b"}


def test_the_list_for_retries_is_short():
    choice = choose([candidate(str(n), running=n) for n in range(9)], prompt_tokens=1, policy=POLICY, seed=0)
    assert choice.addresses == ("0", "1", "2", "3")


def test_no_candidates_is_the_callers_case():
    with pytest.raises(ValueError, match="no candidates"):
        choose([], prompt_tokens=1, policy=POLICY, seed=0)


count = st.integers(0, 200)
readings = st.builds(
    EndpointLoad,
    age_s=st.floats(0, 60),
    running=count,
    waiting=count,
    waiting_uncached_tokens=st.integers(0, 10**6),
    prefill_tokens_per_s=st.floats(0, 1e5),
    decode_step_s=st.floats(0, 10),
)


@st.composite
def pools(draw):
    known = draw(st.lists(readings, min_size=1, max_size=8))
    return [
        Candidate(
            address=str(index),
            inflight=draw(count),
            recent=draw(st.integers(0, 20)),
            recent_tokens=draw(st.integers(0, 10**5)),
            load=load,
        )
        for index, load in enumerate(known)
    ] + [blind(f"blind-{index}", draw(count)) for index in range(draw(st.integers(0, 2)))]


@given(pool=pools(), prompt_tokens=st.integers(0, 10**6), seed=st.integers(0, 2**32))
def test_the_choice_is_bounded_and_complete(pool, prompt_tokens, seed):
    choice = choose(pool, prompt_tokens=prompt_tokens, policy=POLICY, seed=seed)
    known = [c for c in pool if c.load is not None]
    first = next(c for c in pool if c.address == choice.addresses[0])
    mean = (sum(c.requests for c in known) + 1) / len(known)
    assert first.load is not None
    assert first.requests + 1 <= 1.25 * mean + 1
    assert len(set(choice.addresses)) == len(choice.addresses) == min(len(pool), POLICY.max_endpoints)
    assert choice == choose(pool, prompt_tokens=prompt_tokens, policy=POLICY, seed=seed)


@given(number=st.integers(1, 6), requests=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_requests_between_two_readings_spread_by_the_gateways_own_counts(number, requests, seed):
    """No herd: with readings that stay the same, what this gateway sends is counted by itself."""
    sent = [0] * number
    for turn in range(requests):
        pool = [
            candidate(str(index), inflight=here, recent=here, recent_tokens=100 * here)
            for index, here in enumerate(sent)
        ]
        chosen = choose(pool, prompt_tokens=100, policy=POLICY, seed=seed + 7919 * turn).addresses[0]
        sent[int(chosen)] += 1
    assert max(sent) <= 1.25 * requests / number + 1
