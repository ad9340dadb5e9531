"""The choice of an endpoint: costs in seconds by their terms, ties, copies of prefixes, sessions, missing readings."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kvasir_gateway.choose import (
    MOST_COST_S,
    STRATEGIES,
    Candidate,
    ChoicePolicy,
    EndpointLoad,
    RequestSize,
    choose,
    cost_of,
)
from kvasir_gateway.queue_room import QueueRoom

POLICY = ChoicePolicy()
SIZE = RequestSize(prompt_tokens=1000, output_tokens=100)


def candidate(
    address, *, inflight=0, recent=0, recent_tokens=0, cached_tokens=0, rent_s=0.0, cold_s=0.0, sent_s=0.0, **load
):
    speeds = {"prefill_tokens_per_s": 1000.0, "stall_fraction": 0.5, "decode_slope_s": 0.001}
    return Candidate(
        address=address,
        inflight=inflight,
        recent=recent,
        recent_tokens=recent_tokens,
        cached_tokens=cached_tokens,
        rent_s=rent_s,
        cold_s=cold_s,
        sent_s=sent_s,
        load=EndpointLoad(**{**speeds, **load}),
    )


def blind(address, inflight=0):
    return Candidate(address=address, inflight=inflight)


@pytest.mark.parametrize(
    ("one", "uncached", "terms"),
    [
        (candidate("a"), 1000, {"compute_s": 1.0}),
        (candidate("a"), 200, {"compute_s": 0.2}),
        (candidate("a", waiting_uncached_tokens=3000), 1000, {"wait_s": 3.0, "compute_s": 1.0}),
        (candidate("a", running=0, queue_s=9.0), 1000, {"compute_s": 1.0}),
        (
            candidate("a", running=4, queue_s=2.5),
            1000,
            {"wait_s": 2.5, "compute_s": 1.0, "stall_s": 2.0, "decode_s": 0.8},
        ),
        (
            candidate("a", recent=2, recent_tokens=500),
            1000,
            {"wait_s": 0.5, "compute_s": 1.0, "stall_s": 1.0, "decode_s": 0.4},
        ),
        (
            candidate("a", waiting=40, max_sequences=10, queue_s=1.0),
            1000,
            {"wait_s": 1.0, "compute_s": 1.0, "stall_s": 5.0, "decode_s": 2.0},
        ),
        (candidate("a", arrivals_per_s=2.0), 1000, {"compute_s": 1.0, "later_s": 2.0}),
        (candidate("a", arrivals_per_s=2.0, busy_fraction=0.75), 1000, {"compute_s": 1.0, "later_s": 8.0}),
        (candidate("a", arrivals_per_s=2.0, busy_fraction=1.0), 1000, {"compute_s": 1.0, "later_s": 60.0}),
        (candidate("a", age_s=5.0), 1000, {"compute_s": 1.0, "silence_s": 3.0}),
    ],
)
def test_each_term_is_what_was_measured(one, uncached, terms):
    cost = cost_of(one, SIZE, uncached_tokens=uncached, policy=POLICY)
    found = {name: getattr(cost, name) for name in ("wait_s", "compute_s", "stall_s", "decode_s", "later_s")}
    found["silence_s"] = cost.silence_s
    assert {name: seconds for name, seconds in found.items() if seconds} == pytest.approx(terms)
    assert cost.total_s == pytest.approx(sum(terms.values()))


CASES = {
    "the pod that holds the prompt": ([candidate("a"), candidate("b", cached_tokens=800)], ("b", "a"), "cheapest"),
    "the holder, where waiting costs less than computing": (
        [candidate("a"), candidate("b", cached_tokens=800, waiting_uncached_tokens=500)],
        ("b", "a"),
        "cheapest",
    ),
    "another one, where waiting costs more": (
        [candidate("a"), candidate("b", cached_tokens=800, waiting_uncached_tokens=900)],
        ("a", "b"),
        "cheapest",
    ),
    "less queued prompt": (
        [candidate("a", waiting_uncached_tokens=4000), candidate("b", waiting_uncached_tokens=100)],
        ("b", "a"),
        "cheapest",
    ),
    "the same queue on a faster pod": (
        [
            candidate("a", waiting_uncached_tokens=4000),
            candidate("b", waiting_uncached_tokens=4000, prefill_tokens_per_s=9000.0, kind="fast"),
        ],
        ("b", "a"),
        "cheapest",
    ),
    "fewer sequences beside": ([candidate("a", running=2), candidate("b", running=1)], ("b", "a"), "cheapest"),
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
    "a tie goes to the pod that got a cold prompt longest ago": (
        [candidate("a", cold_s=9.0), candidate("b", cold_s=3.0), candidate("c", cold_s=5.0)],
        ("b", "a", "c"),
        "tie",
    ),
    "of equals that hold the prompt, the one that got any prompt longest ago": (
        [
            candidate("a", cached_tokens=900, cold_s=1.0, sent_s=9.0),
            candidate("b", cached_tokens=900, cold_s=9.0, sent_s=1.0),
        ],
        ("b", "a"),
        "tie",
    ),
    "of equals the one that holds more": (
        [candidate("a", cached_tokens=960, sent_s=1.0), candidate("b", cached_tokens=961, sent_s=9.0)],
        ("b", "a"),
        "tie",
    ),
    "costs within a twentieth are a tie": (
        [candidate("a", cold_s=9.0), candidate("b", cold_s=3.0, prefill_tokens_per_s=970.0, kind="other")],
        ("b", "a"),
        "tie",
    ),
    "one endpoint": ([candidate("a", running=500)], ("a",), "only"),
    "no pod has a reading": ([blind("a", 3), blind("b", 1), blind("c", 2)], ("b", "c", "a"), "no_reading"),
}


@pytest.mark.parametrize(("candidates", "addresses", "reason"), CASES.values(), ids=CASES.keys())
def test_cost_in_seconds_orders_the_endpoints(candidates, addresses, reason):
    choice = choose(candidates, SIZE, policy=POLICY)
    assert (choice.addresses, choice.reason) == (addresses, reason)


def test_pods_of_one_kind_are_equally_fast_whatever_each_has_measured():
    pods = [candidate("a", prefill_tokens_per_s=400.0, cold_s=1.0), candidate("b", cold_s=2.0)]
    choice = choose(pods, SIZE, policy=POLICY)
    assert (choice.reason, choice.addresses[0]) == ("tie", "a")
    assert {cost.compute_s for cost in choice.costs} == {1000 / 700}


def test_one_pod_does_not_shift_what_its_peers_cost():
    true = [candidate(name) for name in "abc"]
    false = candidate("d", prefill_tokens_per_s=1e7, stall_fraction=1.0, decode_slope_s=10.0)
    found = {cost.address: cost for cost in choose([*true, false], SIZE, policy=POLICY).costs}
    assert [found[name] for name in "abc"] == list(choose(true, SIZE, policy=POLICY).costs)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), -5.0, 1e300])
def test_a_cost_that_is_no_number_of_seconds_is_the_largest(number):
    cost = structs.replace(cost_of(candidate("a"), SIZE, uncached_tokens=10, policy=POLICY), wait_s=number)
    assert cost.total_s == MOST_COST_S


def test_speeds_that_a_pod_has_not_measured_are_those_of_the_others():
    fresh = candidate("a", prefill_tokens_per_s=0.0, stall_fraction=0.0, decode_slope_s=0.0, running=1)
    twin = candidate("b", running=1)
    mine, others = choose([fresh, twin], SIZE, policy=POLICY).costs
    assert structs.replace(mine, address="b") == others


def test_without_any_measurement_the_load_still_decides():
    unmeasured = {"prefill_tokens_per_s": 0.0, "stall_fraction": 0.0, "decode_slope_s": 0.0}
    busy, idle = candidate("a", running=5, **unmeasured), candidate("b", **unmeasured)
    assert choose([busy, idle], SIZE, policy=POLICY).addresses[0] == "b"


@pytest.mark.parametrize(("seed", "first"), [(0, "a"), (1, "b"), (2, "c"), (3, "a")])
def test_equal_costs_are_drawn(seed, first):
    choice = choose([candidate(name) for name in "abc"], SIZE, policy=POLICY, seed=seed)
    assert (choice.addresses[0], choice.reason) == (first, "tie")


def test_of_two_drawn_the_one_with_fewer_requests_is_taken():
    near = [candidate("a", inflight=2), candidate("b", inflight=1)]
    assert {choose(near, SIZE, policy=POLICY, seed=seed).addresses[0] for seed in range(8)} == {"b"}


def test_the_list_for_retries_is_short():
    choice = choose([candidate(str(n), running=n) for n in range(9)], SIZE, policy=POLICY)
    assert choice.addresses == ("0", "1", "2", "3")


def test_no_candidates_is_the_callers_case():
    with pytest.raises(ValueError, match="no candidates"):
        choose([], SIZE, policy=POLICY)


def test_a_prefix_is_copied_once_waiting_for_its_holder_has_cost_what_a_copy_costs():
    rent_s, reasons, rents = 0.0, [], []
    for _ in range(5):
        holder = candidate("a", cached_tokens=900, waiting_uncached_tokens=310, rent_s=rent_s)
        choice = choose([holder, candidate("b")], SIZE, policy=POLICY)
        _, rent_s = choice.rented
        reasons.append((choice.reason, choice.addresses[0]))
        rents.append(round(rent_s, 3))
    assert reasons == [("cheapest", "a"), ("cheapest", "a"), ("copy", "b"), ("cheapest", "a"), ("cheapest", "a")]
    assert rents == [0.31, 0.62, 0.0, 0.31, 0.62]


def test_a_holder_that_is_no_busier_than_the_others_costs_no_rent():
    holder = candidate("a", cached_tokens=900, rent_s=0.4)
    others = [candidate("b", waiting_uncached_tokens=300), candidate("c")]
    choice = choose([holder, *others], SIZE, policy=POLICY)
    assert (choice.reason, choice.rented) == ("cheapest", ("a", pytest.approx(0.25)))


def test_nothing_is_paid_where_every_pod_holds_the_prefix():
    pods = [candidate(name, cached_tokens=900, waiting_uncached_tokens=n * 500) for n, name in enumerate("abc")]
    choice = choose(pods, SIZE, policy=POLICY)
    assert (choice.reason, choice.addresses[0], choice.rented) == ("cheapest", "a", ("a", 0.0))


def test_a_session_stays_and_moves_alone_when_its_pod_leaves():
    pods = [candidate(str(n), waiting_uncached_tokens=n * 1000) for n in range(5)]

    def placed(among, session):
        return choose(among, replace(SIZE, session=session), policy=POLICY, seed=len(session)).addresses[0]

    sessions = [f"session {n}" for n in range(200)]
    before = {session: placed(pods, session) for session in sessions}
    assert set(before.values()) == {"0", "1", "2", "3", "4"}
    assert before == {session: placed(pods[::-1], session) for session in sessions}
    after = {session: placed(pods[1:], session) for session in sessions}
    assert {s for s in sessions if after[s] != before[s]} == {s for s in sessions if before[s] == "0"}


def test_other_strategies_read_no_costs():
    pods = [
        candidate("a", inflight=3),
        candidate("b", inflight=1, waiting_uncached_tokens=9000),
        candidate("c", running=4),
    ]
    least = choose(pods, SIZE, policy=ChoicePolicy(strategy="least-load"))
    assert (least.addresses, least.reason) == (("b", "a", "c"), "least_load")
    in_turn = ChoicePolicy(strategy="round-robin")
    firsts = [choose(pods, replace(SIZE, turn=turn), policy=in_turn).addresses[0] for turn in range(5)]
    assert firsts == ["a", "b", "c", "a", "b"]


count = st.integers(0, 200)
loads = st.builds(
    EndpointLoad,
    age_s=st.floats(0, 60),
    running=count,
    waiting=count,
    waiting_uncached_tokens=st.integers(0, 10**6),
    queue_s=st.floats(-1, 100),
    prefill_tokens_per_s=st.floats(0, 1e5),
    stall_fraction=st.floats(0, 1),
    decode_slope_s=st.floats(0, 1),
    max_sequences=count,
    arrivals_per_s=st.floats(0, 1e3),
    busy_fraction=st.floats(0, 1),
)


@st.composite
def pools(draw):
    known = draw(st.lists(st.none() | loads, min_size=1, max_size=8))
    return [
        Candidate(
            address=str(index),
            inflight=draw(count),
            recent=draw(st.integers(0, 20)),
            recent_tokens=draw(st.integers(0, 10**5)),
            cached_tokens=draw(st.sampled_from((0, 64, 640, 6400))),
            rent_s=draw(st.floats(0, 10)),
            cold_s=draw(st.sampled_from((float("-inf"), 1.0, 2.0))),
            load=load,
        )
        for index, load in enumerate(known)
    ]


@given(
    pool=pools(),
    size=st.builds(
        RequestSize,
        prompt_tokens=st.floats(0, 1e6),
        output_tokens=st.floats(0, 1e5),
        session=st.sampled_from(("", "s")),
        turn=count,
    ),
    policy=st.builds(ChoicePolicy, strategy=st.sampled_from(("cost", "least-load", "round-robin"))),
    seed=st.integers(0, 2**32),
)
def test_every_choice_is_complete_and_the_same_again(pool, size, policy, seed):
    choice = choose(pool, size, policy=policy, seed=seed)
    assert choice == choose(pool, size, policy=policy, seed=seed)
    assert len(set(choice.addresses)) == len(choice.addresses) == min(len(pool), policy.max_endpoints)
    by_address = {c.address: c for c in pool}
    assert by_address[choice.addresses[0]].load is not None or all(c.load is None for c in pool)
    if choice.costs and choice.reason != "copy":
        chosen = next(c for c in choice.costs if c.address == choice.addresses[0])
        assert chosen.total_s <= 1.05 * min(c.total_s for c in choice.costs) + 1e-6
    if choice.rented:
        assert choice.rented[1] >= 0


@given(number=st.integers(1, 6), requests=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_requests_between_two_readings_spread_by_the_gateways_own_counts(number, requests, seed):
    """No herd: with readings that stay the same, what this gateway sends is counted by itself."""
    sent = [0] * number
    for turn in range(requests):
        pool = [
            candidate(str(index), inflight=here, recent=here, recent_tokens=100 * here)
            for index, here in enumerate(sent)
        ]
        size = RequestSize(prompt_tokens=100, output_tokens=100)
        sent[int(choose(pool, size, policy=POLICY, seed=seed + 7919 * turn).addresses[0])] += 1
    assert max(sent) - min(sent) <= 1


@pytest.mark.parametrize(("cached_tokens", "firsts"), [(900, "abca"), (0, "aaaa")])
def test_gateways_that_choose_at_once_choose_apart_unless_a_prompt_is_cold(cached_tokens, firsts):
    """Two copies of a cold prompt on two pods would both be computed."""
    times = {"a": 1.0, "b": 2.0, "c": 3.0}
    pods = [candidate(name, cached_tokens=cached_tokens, cold_s=at, sent_s=at) for name, at in times.items()]
    for number, first in enumerate(firsts):
        choice = choose(pods, replace(SIZE, gateway=number), policy=POLICY)
        assert (choice.addresses[0], choice.reason) == (first, "tie")


def full(address, **load):
    return candidate(address, running=4, waiting=2, room=QueueRoom(places=4, most_requests=2), **load)


@pytest.mark.parametrize("policy", [ChoicePolicy(strategy=strategy) for strategy in STRATEGIES])
@pytest.mark.parametrize("session", ["", "one", "two"])
def test_endpoints_with_room_come_first_and_silent_ones_before_full_ones(policy, session):
    size = replace(SIZE, session=session)
    busy = [candidate("c", running=9, waiting=90), blind("d"), full("a"), full("b")]
    choice = choose(busy, size, policy=policy)
    assert choice.addresses == ("c", "d", "a", "b")
    assert (choice.full, choice.is_saturated, choice.has_alternative) == ({"a", "b"}, False, True)
    choice = choose([full("a"), candidate("c")], size, policy=policy)
    assert (choice.addresses, choice.has_alternative) == (("c", "a"), False)
    choice = choose([full("a"), blind("d"), full("b")], size, policy=policy)
    assert (choice.is_saturated, choice.addresses[-1]) == (True, "d")
