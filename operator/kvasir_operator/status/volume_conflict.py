"""A replica that waits for a volume which another node holds: what would look like a start for half an hour.

Any number of pods of one node may use a ReadWriteOnce claim. Whether the replicas come to lie on one node is known when
they do, so that nothing is refused before.
"""

from typing import Final

from kvasir_operator.observed.replica import epoch
from kvasir_operator.status.inputs import StatusInputs

PATIENCE_S: Final = 30.0
"""A volume that moves from a replica that has just gone takes as long."""


def volume_conflict(found: StatusInputs) -> str:
    """Why a replica cannot have its model's claim, and what to do; empty where none waits for it."""
    seen = found.seen
    pods = [pod for r in seen.replicas if r.live for pod in (r, *r.nodes)]
    holders = [pod for pod in pods if pod.node and (pod.started_at is not None or pod.mounted_at is not None)]
    nodes, now = {r.node for r in holders}, epoch(found.now) or 0.0
    updated = (pod for r in found.updated for pod in (r, *r.nodes))
    waiting = (pod for pod in updated if pod.unmounted and pod.node and pod.node not in nodes)
    late = next((pod for pod in waiting if pod.scheduled_at is not None and now - pod.scheduled_at > PATIENCE_S), None)
    if not seen.claim_of_one_node or not holders or late is None:
        return ""
    return (
        f"{late.name} on node {late.node} waits for the claim of spec.model, which only one node at a time may"
        f" mount and {holders[0].name} has on node {holders[0].node}: use one with ReadOnlyMany or ReadWriteMany, or"
        " keep all pods on one node by spec.pod.nodeSelector"
    )
