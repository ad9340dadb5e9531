"""The autoscaler's decisions: a table for each rule, and whole runs against a simulated service."""

import pytest

from fakes.load import NOW, steady
from kvasir_operator.scaling.decide import ReplicaChange, ScalingState, decide
from kvasir_operator.scaling.level_window import LevelWindow
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.window import EMPTY

POLICY = ScalingPolicy(min_replicas=1, max_replicas=8)


def watched(wanted, *, levels=(), **fields):
    """A state that has watched for longer than any window."""
    return ScalingState(wanted=wanted, since=NOW - 10_000, levels=LevelWindow(entries=levels), **fields)


def decided(window, wanted=1, *, rules=POLICY, unplaced_s=0.0, **state):
    decision, _ = decide(rules, window, unplaced_s=unplaced_s, state=watched(wanted, **state), now=NOW)
    return decision


@pytest.mark.parametrize(("pinned", "waiting", "want"), [(200, 0, 1), (900, 0, 2), (200, 150_000, 3)])
def test_larger_demand_wins(pinned, waiting, want):
    assert decided(steady(pinned_tokens=pinned, waiting=min(1, waiting), waiting_tokens=waiting)).replicas == want


@pytest.mark.parametrize(
    ("gauges", "wanted", "unplaced_s", "expected"),
    [
        ({"pinned_tokens": 0}, 1, 0.0, (1, "floor", "floor")),
        ({"pinned_tokens": 9_000}, 8, 0.0, (8, "ceiling", "ceiling")),
        ({"pinned_tokens": 9_000}, 1, 0.0, (5, "kv", "rate")),
        ({"pinned_tokens": 2_000}, 2, 61.0, (2, "kv", "capacity")),
        ({"pinned_tokens": 2_000}, 2, 59.0, (3, "kv", "")),
        # at 620 of 1000 one replica is below the release edge of 70 % of nine tenths: two become one
        ({"pinned_tokens": 620}, 2, 0.0, (1, "kv", "")),
        # at 700 two stay two and one stays one: between the edges nothing is scaled
        ({"pinned_tokens": 700}, 2, 0.0, (2, "kv", "")),
        ({"pinned_tokens": 700}, 1, 0.0, (1, "kv", "")),
        ({"pinned_tokens": 100, "missing": ("pod-b",)}, 3, 0.0, (3, "kv", "readings")),
        # a missing reading does not hold back growth
        ({"pinned_tokens": 2_000, "missing": ("pod-b",)}, 2, 0.0, (3, "kv", "")),
        # at most a quarter of them, but one, leaves in a period
        ({"pinned_tokens": 0}, 8, 0.0, (6, "kv", "rate")),
        ({"pinned_tokens": 0}, 3, 0.0, (2, "kv", "rate")),
    ],
)
def test_what_limits_a_decision(gauges, wanted, unplaced_s, expected):
    decision = decided(steady(**gauges), wanted, unplaced_s=unplaced_s)
    assert (decision.replicas, decision.signal, decision.limited_by) == expected


def test_no_reading_at_all_holds():
    decision = decided(EMPTY, 3)
    assert (decision.replicas, decision.limited_by) == (3, "readings")


def test_the_largest_demand_of_the_window_counts():
    decision = decided(steady(pinned_tokens=0), 3, levels=((NOW - 299, 3),))
    assert (decision.replicas, decision.limited_by) == (3, "window")
    assert decided(steady(pinned_tokens=0), 3, levels=((NOW - 301, 3),)).replicas == 2


def test_nothing_is_removed_before_a_whole_window_was_watched():
    quiet = steady(pinned_tokens=0)
    fresh = ScalingState(wanted=3, since=NOW - 299)
    decision, _ = decide(POLICY, quiet, unplaced_s=0.0, state=fresh, now=NOW)
    assert (decision.replicas, decision.limited_by) == (3, "window")


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_time_alone_changes_nothing_where_none_may_leave(wanted):
    """Or the status would be written once more when a whole window has been watched."""
    quiet, rules = steady(pinned_tokens=0), ScalingPolicy(min_replicas=3, max_replicas=8)
    fresh = ScalingState(wanted=wanted, since=NOW, levels=LevelWindow(entries=((NOW - 1, wanted),)))
    told = [decide(rules, quiet, unplaced_s=0.0, state=fresh, now=NOW + later)[0] for later in (0, 299, 301, 9_000)]
    assert {(d.replicas, d.raw, d.signal, d.limited_by) for d in told} == {(3, 0, "floor", "floor")}


@pytest.mark.parametrize("missing", [(), ("pod-b",)])
def test_silence_holds_nothing_where_none_may_leave(missing):
    assert decided(steady(pinned_tokens=0, missing=missing), 1).limited_by == "floor"


@pytest.mark.parametrize(
    ("changes", "replicas"),
    [
        ((), 5),
        ((ReplicaChange(at=NOW - 30, before=1, after=3),), 5),  # four more than the one at the period's beginning
        ((ReplicaChange(at=NOW - 61, before=1, after=3),), 7),
    ],
)
def test_growth_is_limited_per_period(changes, replicas):
    wanted = changes[-1].after if changes else 1
    assert decided(steady(pinned_tokens=9_000), wanted, changes=changes).replicas == replicas


def test_bounds_that_move_are_followed_at_once():
    assert decided(steady(pinned_tokens=0), 8, rules=ScalingPolicy(min_replicas=1, max_replicas=2)).replicas == 2
    assert decided(EMPTY, 1, rules=ScalingPolicy(min_replicas=3, max_replicas=4)).replicas == 3


def test_the_reason_says_what_needs_how_much():
    decision = decided(steady(pinned_tokens=2_000), 2)
    assert decision.reason == "KV cache needs 2.6 replicas at 85 %"
    assert decision.arithmetic.startswith(
        "kv 2.61, slots 0.00, prefill 0.00 replicas; 0 running with 2,000 pinned tokens"
    )


def test_a_paused_autoscaler_leaves_the_count_outside_of_the_bounds_too():
    rules = ScalingPolicy(min_replicas=1, max_replicas=8, paused=True)
    decision = decided(steady(pinned_tokens=9_000), 9, rules=rules)
    assert (decision.replicas, decision.raw, decision.limited_by) == (9, 12, "paused")


def test_one_step_at_a_time_while_a_reading_contradicts_itself():
    odd = steady(pinned_tokens=9_000, contradictions=(("pod-b", "running is -1"),), missing=("pod-b",))
    decision = decided(odd, 3)
    assert (decision.replicas, decision.limited_by) == (4, "rate")


def test_one_step_at_a_time_for_a_policy_of_one_pod_too():
    """Its share would let the count double."""
    odd = steady(pinned_tokens=9_000, contradictions=(("pod-b", "running is -1"),), missing=("pod-b",))
    decision = decided(odd, 3, rules=ScalingPolicy(min_replicas=1, max_replicas=8, up_pods=1))
    assert (decision.replicas, decision.limited_by) == (4, "rate")


def test_a_day_long_window_takes_no_more_memory_than_there_are_levels():
    rules = ScalingPolicy(min_replicas=1, max_replicas=8, down_window_s=86_400.0)
    state = ScalingState(wanted=1, since=0.0)
    for tick in range(4_000):
        load = steady(seconds=4, pinned_tokens=500 + 5_000 * (tick % 7))
        _, state = decide(rules, load, unplaced_s=0.0, state=state, now=NOW + 2 * tick)
    assert len(state.levels.entries) <= rules.max_replicas


@pytest.mark.parametrize(
    ("gauges", "wanted", "unplaced_s", "message"),
    [
        ({"pinned_tokens": 2_000}, 2, 0.0, "3 replicas: KV cache determines the count"),
        (
            {"arrivals": 4, "ended": 4, "running": 4, "prompt_tokens": 3000},
            1,
            0.0,
            "2 replicas: prefill rate determines the count",
        ),
        (
            {"pinned_tokens": 0},
            1,
            0.0,
            "1 replica: spec.autoscaling.minReplicas determines the count; KV cache requires 0",
        ),
        (
            {"pinned_tokens": 9_000},
            8,
            0.0,
            "8 replicas: spec.autoscaling.maxReplicas limits the count; KV cache requires 12",
        ),
        (
            {"pinned_tokens": 9_000},
            1,
            0.0,
            "5 replicas: spec.autoscaling.scaleUp limits how fast the count changes; KV cache requires 12",
        ),
        (
            {"pinned_tokens": 0},
            8,
            0.0,
            "6 replicas: spec.autoscaling.scaleDown limits how fast the count changes; KV cache requires 0",
        ),
        (
            {"pinned_tokens": 2_000},
            2,
            61.0,
            "2 replicas: the count stays while a replica finds no node; KV cache requires 3",
        ),
        (
            {"pinned_tokens": 100, "missing": ("pod-b",)},
            3,
            0.0,
            "3 replicas: the count stays while readings are missing; KV cache requires 1",
        ),
        (
            {"kv": 0.0},
            3,
            0.0,
            "3 replicas: the count stays while readings are missing; no replica has reported its capacity yet",
        ),
    ],
)
def test_a_message_names_what_determines_the_count(gauges, wanted, unplaced_s, message):
    decision = decided(steady(**gauges), wanted, unplaced_s=unplaced_s)
    assert decision.message == message


def test_a_message_about_the_window_names_what_the_load_requires_now():
    decision = decided(steady(pinned_tokens=0), 3, levels=((NOW - 299, 3),))
    assert decision.message == (
        "3 replicas: the largest demand of the last 300 s determines the count; KV cache requires 0"
    )


def test_the_same_decision_has_the_same_message_whatever_the_numbers():
    quiet, busy = decided(steady(pinned_tokens=100), 1), decided(steady(pinned_tokens=600), 1)
    assert (quiet.replicas, quiet.raw, quiet.limited_by) == (busy.replicas, busy.raw, busy.limited_by)
    assert quiet.message == busy.message
    assert quiet.arithmetic != busy.arithmetic
