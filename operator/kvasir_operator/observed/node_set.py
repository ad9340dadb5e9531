"""A replica of several pods as decisions see it: the pod of node 0, with what its other nodes add to that.

Node 0 stands for the replica: it alone serves, drains and counts. The others can keep it from starting, and where one
of them leaves the replica is replaced. Called when a service is observed.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from kvasir_api import names
from kvasir_kube.kinds import POD, Json, annotations, controller_uid, uid
from kvasir_operator.observed.replica import Replica, epoch


class NodeSet(Struct, frozen=True, kw_only=True):
    """The StatefulSet with the nodes behind node 0. leader: uid of the pod that is node 0. master_address: of node 0,
    as these nodes were given it. replicas: pods that it is to have. created: epoch seconds."""

    uid: str
    leader: str
    master_address: str = ""
    name: str = ""
    replicas: int = 0
    created: float = 0.0


def node_set(obj: Json) -> NodeSet:
    """A StatefulSet. The leader is empty where no pod owns it."""
    return NodeSet(
        uid=uid(obj),
        leader=controller_uid(obj, POD),
        master_address=annotations(obj).get(names.ANNOTATION_MASTER_ADDRESS, ""),
        name=str(obj["metadata"].get("name", "")),
        replicas=int((obj.get("spec") or {}).get("replicas", 0)),
        created=epoch(obj["metadata"].get("creationTimestamp")) or 0.0,
    )


def assembled(
    leaders: Iterable[Replica], sets: Sequence[NodeSet], nodes: Iterable[tuple[str, Replica]]
) -> tuple[Replica, ...]:
    """Replicas with their other nodes. nodes: pods of nodes, each with the uid of the StatefulSet that controls it."""
    of_set: dict[str, list[Replica]] = {}
    for controller, node in nodes:
        of_set.setdefault(controller, []).append(node)
    made = {one.leader: one for one in sets}
    return tuple(
        _assembled(leader, made[leader.uid], of_set.get(made[leader.uid].uid, [])) if leader.uid in made else leader
        for leader in leaders
    )


def left_behind(sets: Sequence[NodeSet], nodes: Iterable[tuple[str, Replica]]) -> tuple[Replica, ...]:
    """Pods of nodes that leave and are still there, although their StatefulSet has gone. nodes: as of assembled."""
    there = {one.uid for one in sets}
    return tuple(node for controller, node in nodes if node.terminating and controller not in there)


def _assembled(leader: Replica, made: NodeSet, nodes: list[Replica]) -> Replica:
    found = tuple(sorted(nodes, key=lambda node: node.name))
    whole = structs.replace(leader, nodes=found, broken=_broken(leader, made, found))
    late = min(filter(_hinders, found), key=lambda node: (node.phase != "failed", node.name), default=None)
    if late is None or whole.broken or not _waits(leader):
        return whole
    return structs.replace(
        whole,
        phase=late.phase,
        refusal=late.refusal,
        image_failure=late.image_failure,
        out_of_memory=late.out_of_memory,
        restarts=late.restarts,
        last_words=f"node {_number(late)} ({late.name}): {late.last_words or late.phase}",
    )


def _waits(leader: Replica) -> bool:
    """Whether node 0 is kept from its start by others, as far as it says: one that has ended again and again without a
    reason of its own has waited for them in vain."""
    own = leader.refusal or leader.image_failure or leader.out_of_memory or leader.device_fault
    return leader.phase in ("starting", "loading") or (leader.phase == "failed" and not own)


def _hinders(node: Replica) -> bool:
    """Whether node 0 waits in vain for this one."""
    return node.phase in ("failed", "unschedulable")


def _broken(leader: Replica, made: NodeSet, nodes: Sequence[Replica]) -> str:
    """Why these pods compute together no longer, as one sentence; empty where they do or may."""
    if leader.ended_at is not None:
        return "its node 0 has ended"
    if leader.ip and leader.ip != made.master_address:
        return f"its node 0 has the address {leader.ip}, and its other nodes were given {made.master_address}"
    leaves = next((node for node in nodes if node.terminating), None)
    return f"its node {_number(leaves)} ({leaves.name}) leaves" if leaves is not None else ""


def _number(node: Replica) -> str:
    """Of a pod of a StatefulSet, which is the end of its name."""
    return node.name.rpartition("-")[2]
