"""Who leaves, what is done to it, and when the count follows."""

import pytest

from kvasir_api.state import MeasuredRates, RuntimeState
from kvasir_operator.observed.replica import Replica
from kvasir_operator.rollout.drain import cost_s, drain_plan

NOW = 1000.0


def ready(name, *, running=0, tokens=0, created=0.0, **fields):
    phase = "draining" if fields.get("drain_since") is not None else "ready"
    reading = RuntimeState(phase=phase, running=running, remaining_tokens=tokens)
    draining_s = NOW - (fields.get("drain_since") or NOW)
    return Replica(name=name, phase=phase, created=created, draining_s=draining_s, **{"reading": reading, **fields})


def saying(name, **fields):
    """A ready pod with such a reading, created before all others."""
    return Replica(name=name, phase="ready", reading=RuntimeState(phase="ready", **fields))


def leave(*replicas, count=None, target, timeout_s=600.0):
    return drain_plan(replicas, count=len(replicas) if count is None else count, target=target, timeout_s=timeout_s)


def acts(result):
    return [(action.verb, action.replica.name) for action in result.actions]


@pytest.mark.parametrize(
    ("replicas", "first"),
    [
        ([ready("a", tokens=9, running=1), ready("b", tokens=5, running=1)], ("drain", "b")),
        ([ready("a"), Replica(name="b", phase="failed")], ("finish", "b")),
        (
            [Replica(name="a", phase="failed"), Replica(name="b", phase="unschedulable", assigned=False)],
            ("finish", "b"),
        ),
        ([ready("a"), Replica(name="b", phase="loading", reading=RuntimeState(phase="loading"))], ("finish", "b")),
        ([ready("a", created=1.0), ready("b", created=2.0)], ("drain", "b")),
        ([Replica(name="a", pending=True), Replica(name="b", phase="failed")], ("finish", "a")),
        # one that lacks a pod before one that loads with all of them
        (
            [
                Replica(name="a", phase="loading", nodes=(Replica(name="s-1"),)),
                Replica(name="b", phase="unschedulable", nodes=(Replica(name="t-1", assigned=False),)),
            ],
            ("finish", "b"),
        ),
        # whoever is ready goes by its node before its work: one that leaves, then spot
        ([ready("a", tokens=9, running=1, spot=True), ready("b")], ("drain", "a")),
        ([ready("a", spot=True), ready("b", tokens=9, running=1, node_leaves=True)], ("drain", "b")),
        ([ready("a", node_leaves=True), Replica(name="b", phase="failed")], ("finish", "b")),
        # and then by what it costs: work that is left, and a cache that is of use
        ([saying("a", running=1, expected_tokens=200), saying("b", running=8, expected_tokens=800)], ("drain", "b")),
        ([saying("a", reused_tokens=50_000), saying("b", running=1, expected_tokens=200)], ("drain", "b")),
        ([saying("a", reused_tokens=5_000), saying("b", running=1, expected_tokens=200)], ("drain", "a")),
    ],
)
def test_the_first_to_leave_is_the_one_least_missed(replicas, first):
    assert acts(leave(*replicas, target=1)) == [first]


def test_a_pod_that_the_kubelet_ended_leaves_no_place_for_another():
    """Its workload does not count it: were it the one to leave, a replica that serves would go in its place."""
    evicted = Replica(name="b", phase="failed", ended_at=NOW - 100, drain_since=NOW - 100, draining_s=1e6)
    assert acts(leave(ready("a"), evicted, target=1)) == []
    assert acts(leave(ready("a"), evicted, ready("c", created=2.0), target=1)) == [("drain", "c")]


def test_count_stays_while_a_victim_works():
    result = leave(ready("a"), ready("b", running=2, drain_since=NOW - 100), target=1)
    assert (result.count, acts(result)) == (2, [])


@pytest.mark.parametrize(
    ("victim", "verb"),
    [
        (ready("v", running=1), "drain"),
        (ready("v", drain_since=NOW - 1), None),  # idle, but gateways may not have noticed yet
        (ready("v", drain_since=NOW - 4), "finish"),
        (ready("v", running=3, drain_since=NOW - 4), None),
        (ready("v", running=3, drain_since=NOW - 601), "finish"),
        (ready("v", drain_since=NOW - 4, reading=None), None),  # silent is not idle
        (ready("v", drain_since=NOW - 4, reading=RuntimeState(phase="ready")), "ask"),  # it restarted, or never heard
        (ready("v", drain_since=NOW - 4, reading=RuntimeState(phase="loading")), "finish"),
        (ready("v", drain_since=NOW - 9, drained=True), None),
    ],
)
def test_what_happens_to_a_victim(victim, verb):
    result = leave(victim, target=0)
    assert acts(result) == ([(verb, "v")] if verb else [])


def test_count_follows_only_marked_victims():
    gone = ready("a", drain_since=NOW - 9, drained=True)
    working = ready("b", running=1, drain_since=NOW - 9)
    result = leave(gone, working, ready("c"), target=1)
    assert (result.count, acts(result)) == (2, [])


def test_returning_load_releases_the_one_with_most_work():
    result = leave(
        ready("a", tokens=1, running=1, drain_since=NOW - 9),
        ready("b", tokens=9, running=1, drain_since=NOW - 9),
        target=1,
    )
    assert acts(result) == [("release", "b")]


def test_pods_that_do_not_exist_yet_need_no_drain():
    result = leave(ready("a"), count=4, target=2)
    assert (result.count, acts(result)) == (2, [])


def test_pods_that_the_replica_set_is_about_to_delete_are_not_released():
    gone = ready("a", drain_since=NOW - 9, drained=True)
    result = leave(gone, ready("b"), count=1, target=1)
    assert (result.count, acts(result)) == (1, [])


def test_growing_is_immediate():
    assert leave(ready("a"), target=3).count == 3


def test_an_overdue_pod_is_cut_short():
    late = ready("a", drain_since=NOW - 700, terminating=True)
    fresh = ready("b", drain_since=NOW - 10, terminating=True)
    assert acts(leave(late, fresh, count=0, target=0)) == [("cut", "a")]


def test_zero_timeout_finishes_at_once():
    assert acts(leave(ready("a", running=1, drain_since=NOW), target=0, timeout_s=0)) == [("finish", "a")]


@pytest.mark.parametrize(
    ("reading", "seconds"),
    [
        (None, 0.0),
        (RuntimeState(), 0.0),
        (RuntimeState(running=2, expected_tokens=200), 5.0),
        (RuntimeState(running=2, remaining_tokens=200), 5.0),
        (RuntimeState(running=1, expected_tokens=100, rates=MeasuredRates(decode_step_s=0.02)), 2.0),
        (RuntimeState(reused_tokens=3000), 3.0),
        (RuntimeState(waiting=1, waiting_uncached_tokens=500, expected_tokens=10), 1.0),
        (RuntimeState(reused_tokens=3000, rates=MeasuredRates(prefill_tokens_per_s=6000.0)), 0.5),
    ],
)
def test_what_it_costs_that_a_replica_leaves(reading, seconds):
    assert cost_s(reading) == seconds


def test_a_number_of_400_digits_is_a_cost_too():
    wild = RuntimeState(running=10**400, remaining_tokens=10**400, reused_tokens=10**400)
    assert cost_s(wild) > cost_s(RuntimeState(remaining_tokens=10**6))
