"""The children of a service as manifests for server-side apply: a ControllerRevision, a Deployment per revision, a
Service, two that guard the pods, a disruption budget and a network policy, and where replicas are several pods a
StatefulSet for each replica.

Names are derived here and nowhere else. Labels and annotations of the parent are never copied.
"""

from collections.abc import Mapping

from kvasir_api import names
from kvasir_kube.kinds import Json
from kvasir_operator.desired.node_group import is_group
from kvasir_operator.desired.node_set import node_sets
from kvasir_operator.desired.template import owner, pod_labels, selector
from kvasir_operator.observed.service import Observed, Revision
from kvasir_operator.observed.settings import OperatorSettings


def child_name(service: str, revision: str) -> str:
    """Name of a revision and of its workload: at most 63 characters, since a service's name has at most 52."""
    return f"{service}-{revision}"


def controller_revision(seen: Observed, revision: Revision) -> Json:
    """The object that keeps inputs and rendered template; its data never changes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": _metadata(seen, child_name(seen.name, revision.id), revision.id),
        "data": {"inputs": revision.inputs, "template": revision.template},
        "revision": revision.number,
    }


def deployment(seen: Observed, revision: Revision, replicas: int) -> Json:
    """The workload of a revision with its template verbatim; only the number of replicas ever changes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(seen, child_name(seen.name, revision.id), revision.id),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "selector": {"matchLabels": selector(seen.name, revision.id)},
            "template": revision.template,
        },
    }


def svc(seen: Observed) -> Json:
    """The Service over the replicas of all revisions, for clients inside the cluster that go past the gateway."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(seen, seen.name, ""),
        "spec": {
            "type": "ClusterIP",
            "selector": _all_replicas(seen),
            "ports": [
                {
                    "name": names.PORT_HTTP_NAME,
                    "port": names.PORT_HTTP,
                    "targetPort": names.PORT_HTTP_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }


def disruption_budget(seen: Observed) -> Json:
    """An eviction takes one replica at a time; one that is not ready may always go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(seen, seen.name, ""),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": _all_pods(seen),
        },
    }


def network_policy(seen: Observed, current: Revision, settings: OperatorSettings) -> Json:
    """Clients reach the http port. The ops port, which can stop work and shows what is cached, is for operator, gateway
    and the replicas of the service, since a new one reads from the others what they are asked most; the port of blocks
    for these replicas alone, as long as pods of any revision have it. The kubelet's probes come from the node, which no
    policy can shut out."""
    ours = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.system_namespace}},
        "podSelector": {"matchLabels": {names.LABEL_PART_OF: names.PART_OF}},
    }
    peers = {"podSelector": {"matchLabels": _all_replicas(seen)}}
    among_peers = {"from": [peers], "ports": [{"port": names.PORT_KV, "protocol": "TCP"}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(seen, seen.name, ""),
        "spec": {
            # Pods that were quarantined as well.
            "podSelector": {"matchLabels": {names.LABEL_SERVICE: seen.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"port": names.PORT_HTTP, "protocol": "TCP"}]},
                {"from": [ours, peers], "ports": [{"port": names.PORT_OPS, "protocol": "TCP"}]},
                *_from_nodes(seen),
                *([among_peers] if any(map(_has_block_port, (current, *_live(seen)))) else ()),
            ],
        },
    }


def children(
    seen: Observed, current: Revision, counts: Mapping[str, int], settings: OperatorSettings
) -> tuple[Json, ...]:
    """All manifests that ought to exist. counts: replicas by revision; the current one's workload exists even with
    none. The budget follows the first pod: the disruption controller emits an event about one that matches no pod."""
    workloads = []
    for id_, count in counts.items():
        revision = current if id_ == current.id else seen.revision(id_)
        if revision is not None:
            workloads.append(deployment(seen, revision, count))
    budget = (disruption_budget(seen),) if seen.replicas else ()
    around = (svc(seen), *budget, network_policy(seen, current, settings))
    return (*around, controller_revision(seen, current), *workloads, *node_sets(seen))


def _all_replicas(seen: Observed) -> dict[str, str]:
    """Labels that the serving pods of all revisions have."""
    return {names.LABEL_SERVICE: seen.name, names.LABEL_ROLE: names.ROLE_SERVE}


def _live(seen: Observed) -> list[Revision]:
    """Revisions that have pods, or are asked for some."""
    ids = {replica.revision for replica in seen.replicas} | {one.revision for one in seen.workloads if one.replicas}
    return [revision for revision in seen.revisions if revision.id in ids]


def _has_block_port(revision: Revision) -> bool:
    """Whether pods of a revision give out blocks."""
    containers = revision.template["spec"]["containers"]
    return any(port.get("name") == names.PORT_KV_NAME for one in containers for port in one.get("ports") or ())


def _has_groups(seen: Observed) -> bool:
    """Whether a replica is, or still is, several pods."""
    return is_group(seen) or bool(seen.node_sets)


def _all_pods(seen: Observed) -> Json:
    """A selector of all pods that an eviction takes a replica away with."""
    if not _has_groups(seen):
        return {"matchLabels": _all_replicas(seen)}
    roles = {"key": names.LABEL_ROLE, "operator": "In", "values": [names.ROLE_SERVE, names.ROLE_NODE]}
    return {"matchLabels": {names.LABEL_SERVICE: seen.name}, "matchExpressions": [roles]}


def _from_nodes(seen: Observed) -> list[Json]:
    """Nodes of a replica reach its node 0; no other pod does."""
    if not _has_groups(seen):
        return []
    nodes = {names.LABEL_SERVICE: seen.name, names.LABEL_ROLE: names.ROLE_NODE}
    port = {"port": names.PORT_NODES, "protocol": "TCP"}
    return [{"from": [{"podSelector": {"matchLabels": nodes}}], "ports": [port]}]


def _metadata(seen: Observed, name: str, revision: str) -> Json:
    labels = pod_labels(seen.name, revision)
    if not revision:
        del labels[names.LABEL_REVISION]
    return {
        "name": name,
        "namespace": seen.namespace,
        "labels": labels,
        "ownerReferences": [owner(seen)],
    }
