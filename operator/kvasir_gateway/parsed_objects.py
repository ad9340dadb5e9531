"""Pods and workloads as the routing table reads them, each parsed once for as long as it does not change.

Pure. Objects are those of informers, which replace an object that changes and never write into one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvasir_api import names
from kvasir_gateway.held_places import WaitPhase
from kvasir_kube import pod_tls
from kvasir_kube.kinds import DEPLOYMENT, INFERENCE_SERVICE, REPLICA_SET, Json, Key, controller_uid, has_ended, key, uid

Parsed = TypeVar("Parsed")


class PerObject(Generic[Parsed]):
    """What parse returns for each object of a list; it is called for those that the list before did not have."""

    def __init__(self, parse: Callable[[Json], Parsed]) -> None:
        self._parse = parse
        self._kept: dict[int, tuple[Json, Parsed]] = {}

    def of(self, objects: Iterable[Json]) -> list[Parsed]:
        """In the order of the objects."""
        before = self._kept
        found = [(one, before[id(one)][1] if id(one) in before else self._parse(one)) for one in objects]
        self._kept = {id(pair[0]): pair for pair in found}  # an id is not used again while its object is kept
        return [parsed for _, parsed in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One pod of a service. address: host:port for clients. takes_requests: ready, neither draining nor terminating.
    server_name: that its certificate must have, "" where its ports speak no TLS. is_prefill: it is to compute prompts
    for the others of its revision.

    last_resort: not ready, but its runtime has started. By its own fresh reading it may serve nevertheless; and where
    no pod that serves may be chosen it may be one whose engine is stalled, since a late answer is better than none.
    """

    pod: str
    address: str
    ops_url: str
    takes_requests: bool
    last_resort: bool = False
    server_name: str = ""
    is_prefill: bool = False
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPod:
    """service: by its label, which proves nothing. replica_set: namespace and uid of the one that controls it.

    endpoint: None while it has no address, and after it has ended. waits: the phase of one that is to get an address.
    """

    service: Key
    replica_set: Key
    endpoint: Endpoint | None
    waits: WaitPhase | None
    quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedWorkload:
    """A ReplicaSet or a Deployment. key: namespace and uid. above: uid of the Deployment, or of the service, that
    controls it, "" for none."""

    kind: str
    key: Key
    above: str


ABOVE = {REPLICA_SET.kind: DEPLOYMENT, DEPLOYMENT.kind: INFERENCE_SERVICE}


def parsed_workload(workload: Json) -> ParsedWorkload:
    """A Deployment or a ReplicaSet."""
    kind = workload["kind"]
    above = controller_uid(workload, ABOVE[kind])
    return ParsedWorkload(kind=kind, key=(key(workload)[0], uid(workload)), above=above)


def parsed_pod(pod: Json) -> ParsedPod:
    """A pod with a service's label."""
    namespace, marks = key(pod)[0], (pod.get("metadata") or {}).get("labels") or {}
    endpoint = endpoint_of(pod)
    waits: WaitPhase | None = None
    if endpoint is None and (pod.get("status") or {}).get("phase") == "Pending":
        waits = "image" if (pod.get("spec") or {}).get("nodeName") else "schedule"
    return ParsedPod(
        service=(namespace, marks.get(names.LABEL_SERVICE, "")),
        replica_set=(namespace, controller_uid(pod, REPLICA_SET)),
        endpoint=endpoint,
        waits=waits,
        quarantined=marks.get(names.LABEL_ROLE) == names.ROLE_QUARANTINE,
    )


def endpoint_of(pod: Json) -> Endpoint | None:
    """A pod's endpoint; None while it has no address, and after it has ended."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    ip = status.get("podIP")
    if not ip or has_ended(pod):
        return None
    host, server_name = f"[{ip}]" if ":" in ip else ip, pod_tls.server_name(pod)
    ports = {
        port.get("name"): port.get("containerPort")
        for container in spec.get("containers") or ()
        for port in container.get("ports") or ()
    }
    notes = metadata.get("annotations") or {}
    draining = bool(metadata.get("deletionTimestamp")) or names.ANNOTATION_DRAIN in notes
    ready = _is_ready(status)
    containers = status.get("containerStatuses") or ()
    runtime: Json = next((c for c in containers if c["name"] == names.CONTAINER_RUNTIME), {})
    return Endpoint(
        pod=metadata.get("name", ""),
        address=f"{host}:{ports.get(names.PORT_HTTP_NAME) or names.PORT_HTTP}",
        ops_url=pod_tls.base_url(ip, ports.get(names.PORT_OPS_NAME) or names.PORT_OPS, server_name),
        takes_requests=ready and not draining,
        last_resort=bool(runtime.get("started")) and not (ready or draining),
        server_name=server_name,
        is_prefill=notes.get(names.ANNOTATION_SERVING_ROLE) == names.SERVING_ROLE_PREFILL,
        revision=(metadata.get("labels") or {}).get(names.LABEL_REVISION, ""),
    )


def _is_ready(status: Json) -> bool:
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
