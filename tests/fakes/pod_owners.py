"""Deployments and ReplicaSets between services and their pods, as the API server gives them."""

from kvasir_api import names
from kvasir_kube import kinds
from kvasir_kube.kinds import Json


def controller(kind: kinds.Kind, uid: str) -> Json:
    """A reference to the object that controls another one."""
    return {"apiVersion": kind.api_version, "kind": kind.kind, "name": "x", "uid": uid, "controller": True}


def workload(kind: kinds.Kind, uid: str, by: Json, *, service_name: str = "s", namespace: str = "default") -> Json:
    """A Deployment or ReplicaSet of a service with its controller."""
    metadata = {"namespace": namespace, "name": uid, "uid": uid, "labels": {names.LABEL_SERVICE: service_name}}
    return {"kind": kind.kind, "metadata": metadata | {"ownerReferences": [by]}}


def workloads(made: Json) -> tuple[Json, ...]:
    """The Deployment and the ReplicaSet between a service and its pods."""
    uid, where = kinds.uid(made), {"service_name": kinds.key(made)[1], "namespace": kinds.key(made)[0]}
    deployment = workload(kinds.DEPLOYMENT, f"{uid}-deployment", controller(kinds.INFERENCE_SERVICE, uid), **where)
    above = controller(kinds.DEPLOYMENT, f"{uid}-deployment")
    return deployment, workload(kinds.REPLICA_SET, f"{uid}-replica-set", above, **where)
