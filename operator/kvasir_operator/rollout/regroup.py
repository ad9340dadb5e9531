"""Replicas of several pods as one: they begin one after another, and one that has lost a pod is replaced as a whole."""

from collections.abc import Sequence
from typing import Final

from kvasir_operator.observed.replica import Replica
from kvasir_operator.stages import PodAction

LOST_S: Final = 60.0
"""A pod that is still there so long after its grace is on a cluster node that is lost."""


def actions(replicas: Sequence[Replica], left_behind: Sequence[Replica] = (), *, now: float) -> tuple[PodAction, ...]:
    """What to do now. left_behind: nodes that leave and have outlived their StatefulSet. now: epoch seconds.

    Node 0 of a replica that has lost a node is deleted, so that it drains and its workload makes another one with other
    nodes. Where node 0 is lost with its cluster node, and will not go, the others give their places back.
    """
    broken = [PodAction(verb="regroup", replica=r, why=r.broken) for r in replicas if not r.terminating and r.broken]
    left = [r for r in replicas if _lost(r, now) and any(node.live for node in r.nodes)]
    why = "its node 0 has not ended within its grace, so that its other nodes are deleted"
    gone = "it has not ended within its grace, and its StatefulSet has gone"
    return (
        *broken,
        *(PodAction(verb="dissolve", replica=r, why=why) for r in left),
        *(PodAction(verb="discount", replica=node, why=gone) for node in left_behind if _lost(node, now)),
    )


def _lost(pod: Replica, now: float) -> bool:
    """Whether it should have ended long ago."""
    return pod.grace_ends_at is not None and now > pod.grace_ends_at + LOST_S


def gathered(replicas: Sequence[Replica], *, nodes: int, count: int, applied: int) -> int:
    """The count to aim for: no more than one replica waits for places of its pods at a time.

    Else two could each hold a place that the other needs. replicas: of the revision. nodes: pods of each. count: what
    the rollout aims for now. applied: as asked of the workload now, below which this goes only where several wait, as
    after they have lost pods together; none that is ready leaves for that.
    """
    if nodes == 1:
        return count
    live = [r for r in replicas if r.live]
    whole = sum(r.assigned and sum(node.assigned for node in r.nodes) == nodes - 1 for r in live)
    ready = sum(r.phase == "ready" for r in live)
    return min(count, max(whole + 1, ready if len(live) - whole > 1 else applied))
