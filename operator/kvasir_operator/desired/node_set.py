"""The nodes behind node 0 of a replica: a StatefulSet of its own for each pod that is node 0, which owns it.

So a replica leaves as one: the pod of node 0 drains, and when it is gone garbage collection takes the others. The set
is made once node 0 has an address, and never changed: where something of it changes, the replica is replaced.
Its pods prefer cluster nodes in the zone of node 0's, or in the same part by each key over which the service spreads
its replicas, such as a rack: they exchange something for each token, and another place is better than none.
"""

import hashlib
from typing import Any, Final

from kvasir_api import names
from kvasir_kube.kinds import Json
from kvasir_operator.desired import node_group
from kvasir_operator.desired.template import pod_labels
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed, Revision

HOST: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"
MOST_OF_A_NAME: Final = 40
"""Of the service's name. Kubernetes appends to the set's name in labels, which hold 63 characters."""


def node_set_name(service: str, leader_uid: str) -> str:
    """Name of the StatefulSet of a pod that is node 0."""
    return f"{service[:MOST_OF_A_NAME]}-{hashlib.sha256(leader_uid.encode()).hexdigest()[:10]}"


def lacking(seen: Observed) -> list[tuple[Replica, Revision]]:
    """Pods that are node 0 of several, have an address and no set."""
    made = {found.leader for found in seen.node_sets}
    leaders = [r for r in seen.replicas if r.live and r.ip and r.uid not in made]
    found = [(r, seen.revision(r.revision)) for r in leaders]
    return [(r, revision) for r, revision in found if revision is not None and revision.nodes > 1]


def domain_keys(revision: Revision) -> tuple[str, ...]:
    """Labels of nodes by which pods of a replica are to be in one part. One node is none: they are to be on several."""
    spread = revision.template["spec"].get("topologySpreadConstraints") or ()
    return tuple(dict.fromkeys(str(key) for one in spread if (key := one["topologyKey"]) != HOST)) or (ZONE,)


def node_sets(seen: Observed) -> list[Json]:
    """Those that are missing."""
    return [_node_set(seen, r, revision) for r, revision in lacking(seen)]


def _node_set(seen: Observed, leader: Replica, revision: Revision) -> Json:
    labels = {
        **pod_labels(seen.name, revision.id),
        names.LABEL_ROLE: names.ROLE_NODE,
        names.LABEL_LEADER: leader.name,
    }
    selector = (names.LABEL_SERVICE, names.LABEL_REVISION, names.LABEL_ROLE, names.LABEL_LEADER)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": node_set_name(seen.name, leader.uid),
            "namespace": seen.namespace,
            "labels": labels,
            "annotations": {names.ANNOTATION_MASTER_ADDRESS: leader.ip},
            "ownerReferences": [_owner(leader)],
        },
        "spec": {
            "replicas": revision.nodes - 1,
            "ordinals": {"start": 1},
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 0,
            "serviceName": seen.name,
            "selector": {"matchLabels": {name: labels[name] for name in selector}},
            "template": _template(revision.template, leader, labels),
        },
    }


def _template(of_leader: Json, leader: Replica, labels: Json) -> Json:
    """Constraints of the spread are about replicas, which pods of node 0 stand for."""
    spec: Json = {name: value for name, value in of_leader["spec"].items() if name != "topologySpreadConstraints"}
    metadata = of_leader["metadata"]
    if leader.domains:
        spec["affinity"] = _near(spec.get("affinity") or {}, leader.domains)
    own = {one["name"]: one for one in node_group.variables_of_node(leader.ip, leader.uid)}
    spec["containers"] = [
        {**container, "env": [own.get(one["name"], one) for one in container.get("env") or ()]}
        for container in spec["containers"]
    ]
    return {"metadata": {**metadata, "labels": {**metadata["labels"], **labels}}, "spec": spec}


def _near(affinity: Json, domains: tuple[tuple[str, str], ...]) -> Json:
    """An affinity that also prefers nodes with these labels."""
    of_nodes = affinity.get("nodeAffinity") or {}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    own = [
        {"weight": 100, "preference": {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}}
        for key, value in domains
    ]
    return {**affinity, "nodeAffinity": {**of_nodes, preferred: [*(of_nodes.get(preferred) or ()), *own]}}


def _owner(leader: Replica) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": leader.name,
        "uid": leader.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
