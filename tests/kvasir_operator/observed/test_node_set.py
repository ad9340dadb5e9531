"""What the other nodes of a replica add to its node 0: what keeps it from starting, and why it has to be replaced."""

import pytest

from kvasir_api import names
from kvasir_operator.observed.node_set import NodeSet, assembled, node_set
from kvasir_operator.observed.replica import Replica

SET = NodeSet(uid="set", leader="leader", master_address="10.0.0.1")
REFUSED = {"phase": "failed", "refusal": "TooSmall: 9 bytes", "last_words": "TooSmall: 9 bytes", "out_of_memory": True}
PENDING = {"phase": "unschedulable", "assigned": False, "last_words": "0/1 nodes: Insufficient cpu"}


def leader(**fields):
    return Replica(**{"name": "a", "uid": "leader", "ip": "10.0.0.1", **fields})


def whole(of_leader, *nodes, made=SET):
    found = [("set", Replica(name=f"s-{number}", **fields)) for number, fields in nodes]
    (replica,) = assembled([of_leader], [made], found)
    return replica


@pytest.mark.parametrize(
    ("phase", "nodes", "want"),
    [
        ("loading", [(1, {"phase": "loading"})], ("loading", "")),
        ("loading", [], ("loading", "")),
        ("starting", [(1, REFUSED)], ("failed", "node 1 (s-1): TooSmall: 9 bytes")),
        ("loading", [(1, {}), (2, PENDING)], ("unschedulable", "node 2 (s-2): 0/1 nodes: Insufficient cpu")),
        ("loading", [(1, PENDING), (2, REFUSED)], ("failed", "node 2 (s-2): TooSmall: 9 bytes")),
        ("loading", [(1, {"phase": "failed"})], ("failed", "node 1 (s-1): failed")),
        # It serves, or says itself why it does not: nothing is added.
        ("ready", [(1, REFUSED)], ("ready", "")),
        ("draining", [(1, PENDING)], ("draining", "")),
        # One that gives up waiting for its nodes again and again.
        ("failed", [(1, PENDING)], ("unschedulable", "node 1 (s-1): 0/1 nodes: Insufficient cpu")),
        ("failed", [(1, REFUSED)], ("failed", "node 1 (s-1): TooSmall: 9 bytes")),
        ("failed", [(1, {})], ("failed", "")),
    ],
)
def test_a_replica_waits_for_its_last_node(phase, nodes, want):
    found = whole(leader(phase=phase), *nodes)
    assert (found.phase, found.last_words) == want
    assert found.broken == ""
    assert len(found.nodes) == len(nodes)


@pytest.mark.parametrize(
    "own",
    [
        {"refusal": "TooSmall: 1"},
        {"image_failure": "image x cannot be pulled"},
        {"out_of_memory": True},
        {"device_fault": "ecc"},
    ],
)
def test_a_node_0_that_fails_for_a_reason_of_its_own_keeps_it(own):
    found = whole(leader(phase="failed", last_words="own", **own), (1, PENDING), (2, REFUSED))
    assert (found.phase, found.last_words, found.refusal) == ("failed", "own", own.get("refusal", ""))


def test_what_a_node_says_of_an_address_that_its_node_0_had_before_is_no_reason():
    found = whole(leader(phase="loading", ip="10.0.0.9"), (1, REFUSED))
    assert (found.phase, found.refusal) == ("loading", "")


@pytest.mark.parametrize("phase", ["loading", "failed"])
def test_the_reason_of_a_node_is_that_of_the_replica(phase):
    found = whole(leader(phase=phase, restarts=9), (1, {**REFUSED, "restarts": 3}))
    assert (found.refusal, found.out_of_memory, found.restarts) == ("TooSmall: 9 bytes", True, 3)


@pytest.mark.parametrize(
    ("of_leader", "nodes", "want"),
    [
        ({}, [(1, {"terminating": True})], "its node 1 (s-1) leaves"),
        ({"phase": "ready"}, [(1, {}), (3, {"terminating": True})], "its node 3 (s-3) leaves"),
        ({"ip": "10.0.0.9"}, [], "its node 0 has the address 10.0.0.9, and its other nodes were given 10.0.0.1"),
        ({"ip": ""}, [(1, {})], ""),
        ({"ended_at": 1000.0, "phase": "failed"}, [(1, {})], "its node 0 has ended"),
        ({}, [], ""),
    ],
)
def test_a_replica_that_computes_together_no_longer_says_why(of_leader, nodes, want):
    assert whole(leader(**of_leader), *nodes).broken == want


def test_nodes_are_those_that_the_set_of_this_very_pod_controls():
    others = [("other", Replica(name="o-1", terminating=True)), ("", Replica(name="forged-1", terminating=True))]
    (found,) = assembled([leader()], [SET], others)
    assert (found.nodes, found.broken) == ((), "")
    (alone,) = assembled([leader(uid="second")], [SET], [("set", Replica(name="s-1", terminating=True))])
    assert (alone.nodes, alone.broken) == ((), "")


def test_a_set_is_its_owners():
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "leader", "controller": True}
    notes = {names.ANNOTATION_MASTER_ADDRESS: "10.0.0.1"}
    assert node_set({"metadata": {"uid": "set", "annotations": notes, "ownerReferences": [owner]}}) == SET
    other = {**owner, "apiVersion": "example.com/v1"}
    assert node_set({"metadata": {"uid": "set", "ownerReferences": [other]}}).leader == ""
