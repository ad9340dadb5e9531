"""Replicas of several pods as one: they begin one after another, and one that has lost a pod is replaced as a whole."""

from collections.abc import Sequence

from kvasir_operator.observed.replica import Replica
from kvasir_operator.stages import PodAction


def actions(replicas: Sequence[Replica]) -> tuple[PodAction, ...]:
    """What to do now: node 0 of a replica that has lost a node is deleted, so that it drains and its workload makes
    another one, with nodes of its own."""
    return tuple(PodAction(verb="regroup", replica=r, why=r.broken) for r in replicas if r.live and r.broken)


def gathered(replicas: Sequence[Replica], *, nodes: int, count: int, applied: int) -> int:
    """The count that may be applied: no more than one replica waits for places of its pods at a time.

    Else two could each hold a place that the other needs. replicas: of the revision. nodes: pods of each. count: what
    the rollout aims for now. applied: as asked of the workload now, below which this never goes.
    """
    if nodes == 1:
        return count
    whole = sum(r.live and r.assigned and sum(node.assigned for node in r.nodes) == nodes - 1 for r in replicas)
    return min(count, max(applied, whole + 1))
