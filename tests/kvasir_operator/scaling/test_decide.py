"""The autoscaler's decisions: a table for each rule, and whole runs against a simulated service."""

import pytest

from kvasir_api.service import Autoscaling, ScaleDown
from kvasir_operator.scaling.decide import ReplicaChange, ScalingState, decide
from kvasir_operator.scaling.demand import demand
from kvasir_operator.scaling.policy import ScalingPolicy, policy
from kvasir_operator.scaling.window import EMPTY, LoadSample, LoadWindow

NOW = 1000.0
POLICY = ScalingPolicy(min_replicas=1, max_replicas=8)


def steady(*, seconds=600, **gauges):
    """A window of equal samples every two seconds up to NOW; capacity 1000 tokens a replica."""
    fields = {"serving": 1, "capacity_tokens": 1000.0, "prefill_rate": 1000.0, **gauges}
    samples = [LoadSample(at=NOW - seconds + 2 * i, **fields) for i in range(seconds // 2 + 1)]
    return LoadWindow(samples=tuple(samples), counters={})


def watched(wanted, **fields):
    """A state that has watched for longer than any window."""
    return ScalingState(wanted=wanted, since=NOW - 10_000, **fields)


def decided(window, wanted=1, *, rules=POLICY, unplaced_s=0.0, **state):
    decision, _ = decide(rules, window, unplaced_s=unplaced_s, state=watched(wanted, **state), now=NOW)
    return decision


@pytest.mark.parametrize(
    ("gauges", "signal", "replicas"),
    [
        ({"pinned_tokens": 0}, "kv", 0),
        ({"pinned_tokens": 700}, "kv", 1),  # 700 / (0.85 × 0.9 × 1000) = 0.92
        ({"pinned_tokens": 800}, "kv", 2),
        # 2 arrivals each 2 s, each 1530 token-seconds: 1530 tokens by Little's law = 2.0 replicas, pinned is less
        ({"pinned_tokens": 10, "arrivals": 2, "ended": 2, "kv_token_seconds": 3060.0}, "kv", 2),
        # a replica that turns requests away at 300 pinned tokens because of its sequence limit can hold no more
        ({"pinned_tokens": 300, "limit_tokens": 300.0}, "kv", 2),
        # 90,000 waiting prompt tokens at 1000/s within 60 s
        ({"waiting": 9, "waiting_tokens": 90_000}, "backlog", 2),
        # 1000 held requests at gateways, 240 kB of text, are about 60,000 tokens
        ({"held": 1000, "held_bytes": 240_000}, "backlog", 1),
        # 3000 new prompt tokens each 2 s need 1500 / (0.8 × 1000) replicas
        ({"new_tokens": 3000}, "prefill", 2),
    ],
)
def test_each_signal_asks_for_an_absolute_number(gauges, signal, replicas):
    asked = demand(steady(**gauges), edge_fraction=0.85, horizon_s=60.0, now=NOW)
    assert (asked.signal, asked.replicas) == (signal, replicas)


@pytest.mark.parametrize(("pinned", "waiting", "want"), [(200, 0, 1), (900, 0, 2), (200, 150_000, 3)])
def test_larger_demand_wins(pinned, waiting, want):
    assert decided(steady(pinned_tokens=pinned, waiting=1, waiting_tokens=waiting)).replicas == want


def test_unmeasured_prefill_rate_asks_for_nothing():
    asked = demand(steady(new_tokens=3000, prefill_rate=0.0), edge_fraction=0.85, horizon_s=60.0, now=NOW)
    assert asked.replicas == 0


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
    fresh = ScalingState(wanted=wanted, since=NOW, levels=((NOW - 1, wanted),))
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


def test_the_reason_carries_the_numbers():
    reason = decided(steady(pinned_tokens=2_000), 2).reason
    assert reason.startswith(
        "3 replicas: the KV signal determines the count (KV 2.61 + backlog 0.00, prefill 0.00 replicas; "
    )
    assert "2,000 pinned, a replica holds 765 at 85%" in reason


@pytest.mark.parametrize(
    ("gauges", "wanted", "unplaced_s", "message"),
    [
        ({"pinned_tokens": 2_000}, 2, 0.0, "3 replicas: the KV signal determines the count"),
        ({"new_tokens": 3000}, 1, 0.0, "2 replicas: the prefill signal determines the count"),
        (
            {"pinned_tokens": 0},
            1,
            0.0,
            "1 replica: spec.autoscaling.minReplicas determines the count; the KV signal requires 0",
        ),
        (
            {"pinned_tokens": 9_000},
            8,
            0.0,
            "8 replicas: spec.autoscaling.maxReplicas limits the count; the KV signal requires 12",
        ),
        (
            {"pinned_tokens": 9_000},
            1,
            0.0,
            "5 replicas: spec.autoscaling.scaleUp limits how fast the count changes; the KV signal requires 12",
        ),
        (
            {"pinned_tokens": 0},
            8,
            0.0,
            "6 replicas: spec.autoscaling.scaleDown limits how fast the count changes; the KV signal requires 0",
        ),
        (
            {"pinned_tokens": 2_000},
            2,
            61.0,
            "2 replicas: the count stays while a replica finds no node; the KV signal requires 3",
        ),
        (
            {"pinned_tokens": 100, "missing": ("pod-b",)},
            3,
            0.0,
            "3 replicas: the count stays while readings are missing; the KV signal requires 1",
        ),
        (
            {"capacity_tokens": 0.0},
            3,
            0.0,
            "3 replicas: the count stays while readings are missing; no replica has reported its capacity yet",
        ),
    ],
)
def test_a_message_names_what_determines_the_count(gauges, wanted, unplaced_s, message):
    decision = decided(steady(**gauges), wanted, unplaced_s=unplaced_s)
    assert decision.message == message
    assert decision.reason.startswith(message)


def test_a_message_about_the_window_names_what_the_load_requires_now():
    decision = decided(steady(pinned_tokens=0), 3, levels=((NOW - 299, 3),))
    assert decision.message == (
        "3 replicas: the largest demand of the last 300 s determines the count; the KV signal requires 0"
    )


def test_the_same_decision_has_the_same_message_whatever_the_numbers():
    quiet, busy = decided(steady(pinned_tokens=100), 1), decided(steady(pinned_tokens=600), 1)
    assert (quiet.replicas, quiet.raw, quiet.limited_by) == (busy.replicas, busy.raw, busy.limited_by)
    assert quiet.message == busy.message
    assert quiet.reason != busy.reason


@pytest.mark.parametrize(
    ("given", "cold_starts", "horizon"), [(0, (), 60.0), (0, (400.0,), 200.0), (30, (400.0,), 30.0), (0, (10.0,), 60.0)]
)
def test_backlog_horizon_follows_cold_starts(given, cold_starts, horizon):
    assert policy(Autoscaling(backlog_horizon_seconds=given), cold_starts).horizon_s == horizon


def test_policy_takes_percent_and_seconds_from_the_spec():
    spec = Autoscaling(min_replicas=2, kv_target_percent=80, scale_down=ScaleDown(window_seconds=60, percent=50))
    rules = policy(spec)
    assert (rules.min_replicas, rules.target_fraction, rules.down_window_s, rules.down_fraction) == (2, 0.8, 60.0, 0.5)
