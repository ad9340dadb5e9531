"""What a pod template has for a replica of several pods: arguments, variables, port and key. Called by `template`.

All pods of a replica have one template. What differs between them, and between replicas, is in three variables, which
`node_set` fills in for the nodes behind the first.
"""

from typing import Final

from kvasir_api import names
from kvasir_api.flags import flag
from kvasir_kube.kinds import Json
from kvasir_operator.observed.service import Observed

KEY_ENTRY: Final = "key"
VOLUME: Final = "node-key"


def is_group(seen: Observed) -> bool:
    """Whether a replica of the spec is several pods."""
    return seen.spec.runtime.nnodes > 1


def options(seen: Observed) -> dict[str, object]:
    """Options of the runtime beside those of the spec, by field; none where a replica is one pod."""
    if not is_group(seen):
        return {}
    return {
        "node_rank": f"$({names.ENV_NODE_RANK})",
        "master_addr": f"$({names.ENV_MASTER_ADDRESS})",
        "master_port": names.PORT_NODES,
        "node_group": f"$({names.ENV_NODE_GROUP})",
        "node_key_file": f"{names.NODE_KEY_MOUNT}/{KEY_ENTRY}",
    }


def variables(seen: Observed) -> list[Json]:
    """Of node 0: its own address, and its uid as the name of the group."""
    if not is_group(seen):
        return []
    return [
        {"name": names.ENV_NODE_RANK, "value": "0"},
        _field(names.ENV_MASTER_ADDRESS, "status.podIP"),
        _field(names.ENV_NODE_GROUP, "metadata.uid"),
    ]


def variables_of_node(master_address: str, leader_uid: str) -> list[Json]:
    """Of a node behind the first, whose number is that of its pod in the StatefulSet."""
    return [
        _field(names.ENV_NODE_RANK, "metadata.labels['apps.kubernetes.io/pod-index']"),
        {"name": names.ENV_MASTER_ADDRESS, "value": master_address},
        {"name": names.ENV_NODE_GROUP, "value": leader_uid},
    ]


def ports(seen: Observed) -> list[Json]:
    """Where node 0 waits for the others."""
    port = {"name": names.PORT_NODES_NAME, "containerPort": names.PORT_NODES, "protocol": "TCP"}
    return [port] if is_group(seen) else []


def volumes(seen: Observed) -> list[Json]:
    """The service's entry of the namespace's Secret. A pod waits for it: without a key no node could join."""
    if not is_group(seen):
        return []
    items = [{"key": seen.name, "path": KEY_ENTRY}]
    return [{"name": VOLUME, "secret": {"secretName": names.NODE_KEYS_SECRET, "items": items}}]


def mounts(seen: Observed) -> list[Json]:
    """Of that volume."""
    return [{"name": one["name"], "mountPath": names.NODE_KEY_MOUNT, "readOnly": True} for one in volumes(seen)]


def reads_key(template: Json) -> bool:
    """Whether pods of a template need the Secret: its flag is among the arguments."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return any(flag("node_key_file") in (container.get("args") or ()) for container in containers)


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
