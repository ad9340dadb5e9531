"""A claim of one node that replicas on two require: a sentence, not a start without end."""

from dataclasses import replace

import pytest

from fakes.situations import NOW, findings, replica
from kvasir_operator.observed.replica import epoch
from kvasir_operator.status.conditions import conditions
from kvasir_operator.status.summary import summary
from kvasir_operator.status.volume_conflict import volume_conflict

AT = epoch(NOW)
HOLDER = replica("ready", name="a", node="n1", started_at=AT - 900.0)
LATE = {"name": "b", "node": "n2", "unmounted": True, "scheduled_at": AT - 31.0}
WORKER = replica("starting", **LATE)
WORDS = (
    "b on node n2 waits for the claim of spec.model, which only one node at a time may mount and a has on node n1:"
    " use one with ReadOnlyMany or ReadWriteMany, or keep all pods on one node by spec.pod.nodeSelector"
)


def situation(*replicas, of_one_node=True, **fields):
    found = findings(*replicas, **fields)
    seen = replace(found.seen, claim_of_one_node=of_one_node)
    return replace(found, resolved=replace(found.resolved, observed=seen))


@pytest.mark.parametrize(
    ("found", "want"),
    [
        (situation(HOLDER, replica("starting", **LATE), wanted=2), WORDS),
        (situation(HOLDER, replica("starting", **LATE), wanted=2, of_one_node=False), ""),
        (situation(HOLDER, replica("starting", **{**LATE, "node": "n1"}), wanted=2), ""),
        (situation(HOLDER, replica("starting", **{**LATE, "unmounted": False}), wanted=2), ""),
        (situation(HOLDER, replica("starting", **{**LATE, "scheduled_at": AT - 29.0}), wanted=2), ""),
        (situation(replica("starting", **LATE)), ""),
        (situation(replica("starting", name="a", node="n1", mounted_at=AT - 40.0, nodes=(WORKER,))), WORDS),
        (situation(replica("ready", name="c", nodes=(HOLDER,)), replica("starting", **LATE)), WORDS),
    ],
    ids=[
        *("two nodes", "many nodes may", "the same node", "its volumes are there", "it was just scheduled"),
        *("no holder", "a node of the replica", "a node of another replica"),
    ],
)
def test_a_replica_that_waits_for_a_volume_of_another_node_is_told(found, want):
    assert volume_conflict(found) == want


def test_a_service_that_lacks_nothing_else_is_limited_and_a_rollout_that_cannot_begin_is_stalled():
    more = situation(HOLDER, replica("starting", **LATE), wanted=2, obj=None)
    told = {c.type: (c.reason, c.message) for c in conditions(more, summary(more))}
    assert told["Stalled"] == ("VolumeInUse", WORDS)
    assert told["CapacityLimited"] == ("VolumeInUse", WORDS)
    old = replica("ready", name="a", revision="old", node="n1", started_at=AT - 900.0)
    rolled = situation(old, replica("starting", **LATE))
    assert (summary(rolled).reason, summary(rolled).mode) == ("VolumeInUse", "stalled")
