"""The autoscaler's decisions: a table for each rule, and whole runs against a simulated service."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from fakes.load import NOW, steady
from kvasir_operator.scaling.decide import ReplicaChange, ScalingState, decide
from kvasir_operator.scaling.level_window import LevelWindow
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.window import EMPTY

POLICY = ScalingPolicy(min_replicas=1, max_replicas=8)


def watched(wanted, *, levels=(), steady=None, **fields):
    """A state that has watched for longer than any window, in which so many were required at the steady edge."""
    entries = ((NOW - 599, wanted),) if steady is None else steady
    windows = {"levels": LevelWindow(entries=levels), "steady": LevelWindow(entries=entries)}
    return ScalingState(wanted=wanted, since=NOW - 10_000, **windows, **fields)


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


@pytest.mark.parametrize(("level_at", "replicas"), [(NOW - 599, 4), (NOW - 601, 3)])
def test_after_two_windows_a_replica_leaves_that_is_not_required_at_the_target_edge(level_at, replicas):
    """1,900 tokens are 2.5 replicas at 85 %, and 3.02 at 70 %."""
    found = decided(steady(pinned_tokens=1_900, replicas=4), 4, steady=((level_at, 4),))
    assert (found.release.replicas, found.demand.replicas) == (4, 3)
    assert found.replicas == replicas


def test_a_wider_band_between_the_edges_stays_wide():
    """At 40 % to release, 500 of 1,000 tokens keep two replicas for ever: 55 % of nine tenths is the steady edge."""
    rules = replace(POLICY, release_fraction=0.40)
    assert decided(steady(pinned_tokens=500, replicas=2), 2, rules=rules, steady=()).replicas == 2
    assert decided(steady(pinned_tokens=490, replicas=2), 2, rules=rules, steady=()).replicas == 1


def test_the_window_doubles_with_each_decrease_that_was_taken_back():
    """Low for a window, high for another: after the first time the replicas stay."""
    state, counts = ScalingState(wanted=3, since=0.0), []
    for tick in range(1_500):
        low = 2.0 * tick % 610 >= 300
        load = steady(seconds=4, replicas=3, pinned_tokens=500 if low else 1_900)
        found, state = decide(POLICY, load, unplaced_s=0.0, state=state, now=NOW + 2.0 * tick)
        counts.append(found.replicas)
    turns = sum(later < earlier for earlier, later in pairwise(counts))
    assert turns == 1
    assert len(state.setbacks) == 1
    assert found.policy.down_window_s == 600.0


def test_a_replica_that_is_on_its_way_is_not_removed_for_a_load_that_it_was_added_for():
    """What is expected requires three; what is there now, two."""
    growing = steady(replicas=2, running=150, pinned_tokens=1_300, output_tokens=0)
    counts = [s.counts._replace(arrivals=s.at / 10, ended=s.at / 10) for s in growing.samples]
    growing = replace(
        growing, samples=tuple(s._replace(counts=c) for s, c in zip(growing.samples, counts, strict=True))
    )
    rules = replace(POLICY, cold_start_s=400.0)
    found = decided(growing, 3, rules=rules)
    assert found.demand.load.growth > 0
    assert found.demand.replicas > decided(growing, 3).demand.replicas
    assert found.replicas >= 3


def test_what_those_on_their_way_will_serve_requires_no_more():
    """A queue of 130,000 tokens at one replica of 1,000 a second, with starts of 120 s: two were added 100 s ago."""
    queue = steady(waiting=100, waiting_tokens=130_000, arrivals=2, prompt_tokens=2_000, ended=2, running=1)
    rules = replace(POLICY, cold_start_s=120.0)
    added = (ReplicaChange(at=NOW - 100, before=1, after=3),)
    alone, helped = decided(queue, 1, rules=rules), decided(queue, 3, rules=rules, changes=added)
    assert alone.demand.levels["backlog"] > 3
    assert "backlog" not in helped.demand.levels


@pytest.mark.parametrize(
    ("cold_start_s", "ago_s", "backlog"),
    [(20, 5, 215 / 60), (20, 20, 200 / 60), (20, 100, 200 / 60), (20, 250, 200 / 60), (0, 250, 4.0)],
)
def test_a_start_that_takes_too_long_hides_no_queue(cold_start_s, ago_s, backlog):
    """240 s of work wait at one replica, which serves 20 s of it until the next is ready; the other at most as many."""
    queue = steady(waiting=100, waiting_tokens=240_000)
    added = (ReplicaChange(at=NOW - ago_s, before=1, after=2),)
    found = decided(queue, 2, rules=replace(POLICY, cold_start_s=cold_start_s), changes=added)
    assert found.demand.levels["backlog"] == pytest.approx(backlog)


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


def test_bounds_that_move_with_every_tick_leave_an_hour_of_changes():
    """Each was remembered for as long as the window is, and all were looked through at each tick."""
    fixed = [ScalingPolicy(min_replicas=n, max_replicas=n, down_window_s=86_400.0) for n in (1, 8)]
    state, idle = ScalingState(wanted=1, since=0.0), steady(pinned_tokens=0)
    for tick in range(4_000):
        _, state = decide(fixed[tick % 2], idle, unplaced_s=0.0, state=state, now=NOW + 2 * tick)
    assert 1_790 <= len(state.changes) <= 1_801


def test_a_decrease_of_hours_ago_is_taken_back_within_a_window_of_a_day():
    rules = ScalingPolicy(min_replicas=1, max_replicas=8, down_window_s=86_400.0)
    state = ScalingState(wanted=1, since=0.0, changes=(ReplicaChange(at=NOW - 7_200, before=2, after=1),))
    decision, state = decide(rules, steady(pinned_tokens=900), unplaced_s=0.0, state=state, now=NOW)
    assert (decision.replicas, state.setbacks) == (2, (NOW,))


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
