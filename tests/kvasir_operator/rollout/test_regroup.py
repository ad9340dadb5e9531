"""Replicas of several pods in a rollout: how many begin at a time, and which are replaced."""

import pytest

from kvasir_operator.observed.replica import Replica
from kvasir_operator.rollout import regroup

WHOLE = Replica(name="whole", nodes=(Replica(name="s-1"),))
READY = Replica(name="ready", phase="ready")
WAITING = Replica(name="waiting", nodes=(Replica(name="s-1", assigned=False),))
WITHOUT = Replica(name="without")
PENDING = Replica(name="pending", assigned=False)
LEAVING = Replica(name="leaving", terminating=True, nodes=(Replica(name="s-1"),))


@pytest.mark.parametrize(
    ("replicas", "count", "applied", "want"),
    [
        ([], 5, 0, 1),
        ([WITHOUT], 5, 1, 1),
        ([PENDING], 5, 1, 1),
        ([WAITING], 5, 1, 1),
        ([WHOLE], 5, 1, 2),
        ([WHOLE, WAITING], 5, 2, 2),
        ([WHOLE, WHOLE], 5, 2, 3),
        ([WHOLE, LEAVING], 5, 1, 2),
        # What was asked for already stays while one waits, and fewer are always possible.
        ([WHOLE, WHOLE, WAITING], 5, 4, 4),
        # Several that wait hold places of one another, whatever was asked for. None that is ready leaves for that.
        ([PENDING, PENDING, PENDING], 5, 3, 1),
        ([WITHOUT, WAITING], 2, 2, 1),
        ([WHOLE, WITHOUT, WAITING], 3, 3, 2),
        ([READY, READY, WAITING], 3, 3, 2),
        ([WAITING, LEAVING], 2, 2, 2),
        ([WHOLE, WHOLE, WAITING], 1, 3, 1),
        ([], 0, 0, 0),
    ],
)
def test_one_replica_gathers_its_pods_at_a_time(replicas, count, applied, want):
    assert regroup.gathered(replicas, nodes=2, count=count, applied=applied) == want


def test_replicas_of_one_pod_begin_all_at_once():
    assert regroup.gathered([PENDING], nodes=1, count=5, applied=1) == 5


def test_what_is_broken_is_replaced_unless_it_leaves_already():
    broken = Replica(name="a", broken="its node 1 (s-1) leaves")
    gone = Replica(name="b", broken="its node 1 (s-2) leaves", terminating=True)
    (action,) = regroup.actions([WHOLE, broken, gone], now=0.0)
    assert (action.verb, action.replica, action.why) == ("regroup", broken, "its node 1 (s-1) leaves")


@pytest.mark.parametrize(("now", "verbs"), [(1000.0 + regroup.LOST_S, []), (1001.0 + regroup.LOST_S, ["discount"])])
def test_a_node_that_outlives_its_set_and_its_grace_is_selected_no_longer(now, verbs):
    node = Replica(name="s-1", terminating=True, grace_ends_at=1000.0)
    assert [action.verb for action in regroup.actions([WHOLE], [node], now=now)] == verbs


@pytest.mark.parametrize(
    ("node", "now", "verbs"),
    [
        (Replica(name="s-1"), 1000.0, []),
        (Replica(name="s-1"), 1000.0 + regroup.LOST_S, []),
        (Replica(name="s-1"), 1001.0 + regroup.LOST_S, ["dissolve"]),
        (Replica(name="s-1", terminating=True), 1001.0 + regroup.LOST_S, []),
    ],
)
def test_nodes_of_a_node_0_that_does_not_go_give_their_places_back(node, now, verbs):
    lost = Replica(name="a", terminating=True, grace_ends_at=1000.0, nodes=(node,))
    assert [action.verb for action in regroup.actions([lost], now=now)] == verbs
