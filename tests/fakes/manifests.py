"""Objects as an API server would return them: services, pods, and what controllers make of our children."""

from typing import Any

from kvasir_api import names
from kvasir_kube.kinds import Json


def service(name: str = "tiny", *, namespace: str = "default", generation: int = 1, **spec: Any) -> Json:
    """An InferenceService; model.uri defaults to a claim."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "generation": generation,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"model": {"uri": "pvc://models/tiny"}, **spec},
    }


def pod(
    name: str,
    *,
    revision: str = "rev",
    ready: bool = False,
    ip: str = "10.0.0.1",
    annotations: dict[str, str] | None = None,
    container: Json | None = None,
    conditions: list[Json] | None = None,
    deleting: bool = False,
    node: str = "node",
    phase: str = "Running",
) -> Json:
    """A runtime pod. container: its containerStatus, without the name."""
    metadata: Json = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {
            names.LABEL_SERVICE: "tiny",
            names.LABEL_REVISION: revision,
            names.LABEL_PART_OF: names.PART_OF,
            names.LABEL_COMPONENT: names.COMPONENT_RUNTIME,
        },
        "annotations": annotations or {},
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    ready_condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "lastTransitionTime": "2026-01-01T00:00:10Z",
    }
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": names.CONTAINER_RUNTIME}]},
        "status": {
            "phase": phase,
            "podIP": ip,
            "conditions": [ready_condition, *(conditions or [])],
            "containerStatuses": [{"name": names.CONTAINER_RUNTIME, **(container or {})}],
        },
    }


def gateway_pod(name: str, *, ip: str, namespace: str = names.SYSTEM_NAMESPACE) -> Json:
    """A ready pod of the gateway's Deployment."""
    made = pod(name, ready=True, ip=ip)
    made["metadata"] |= {
        "namespace": namespace,
        "labels": {names.LABEL_NAME: names.GATEWAY, names.LABEL_PART_OF: names.PART_OF},
        "ownerReferences": [{"kind": "ReplicaSet", "uid": "uid-replica-set", "controller": True}],
    }
    state = {"name": "state", "containerPort": names.PORT_GATEWAY_STATE}
    made["spec"] = {"serviceAccountName": names.GATEWAY, "containers": [{"name": "picker", "ports": [state]}]}
    return made


UNSCHEDULABLE: Json = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
}


def terminated(code: int, message: str = "", *, reason: str = "Error") -> Json:
    """A container state or lastState of a process that ended."""
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}
