"""Nodes of a replica that its StatefulSet does not get made: no condition of that says so, only its events do."""

from typing import Final

from kvasir_operator.observed.replica import epoch
from kvasir_operator.status.inputs import StatusInputs

PATIENCE_S: Final = 30.0


def missing_nodes(found: StatusInputs) -> str:
    """Of which replica how many nodes were not made, and where the reason is; empty where none is late."""
    now, replicas = epoch(found.now) or 0.0, {r.uid: r for r in found.seen.replicas if r.live}
    for made in found.seen.node_sets:
        leader = replicas.get(made.leader)
        if leader is None or leader.broken or not made.created or now - made.created <= PATIENCE_S:
            continue
        if (lacking := made.replicas - len(leader.nodes)) > 0:
            how_many = f"{lacking} of {made.replicas} nodes behind node 0 were not made"
            return f"{leader.name}: {how_many}: see the events of StatefulSet {made.name}"
    return ""
