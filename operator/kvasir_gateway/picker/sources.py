"""What the picker reads: objects of the API server, state documents of pods. Shells over kvasir_kube.

Both are protocols, so that tests pass lists of their own.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from kvasir_api import names
from kvasir_api.prefix_digest import FollowedPrefixes
from kvasir_api.state import RuntimeState
from kvasir_kube import gateway_pods, kinds
from kvasir_kube.cluster import Cluster
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import Json
from kvasir_kube.pod_tls import PodTls

ROUTES_S: Final = 5.0
"""For the first list of ModelRoutes, once all others are there."""


KEPT_ANNOTATIONS: Final = frozenset({names.ANNOTATION_DRAIN, names.ANNOTATION_TLS, names.ANNOTATION_SERVING_ROLE})


class ObjectSource(Protocol):
    """Services, pods and what stands between them, as they are now. changed is set when they may have changed."""

    changed: asyncio.Event

    def services(self) -> Iterable[Json]:
        """All InferenceServices."""
        ...

    def pods(self) -> Iterable[Json]:
        """All pods that carry a service's label."""
        ...

    def workloads(self) -> Iterable[Json]:
        """Deployments and ReplicaSets that carry a service's label: they prove that a pod is a service's."""
        ...

    def routes(self) -> Iterable[Json]:
        """All ModelRoutes."""
        ...

    def gateways(self) -> Iterable[str]:
        """Base URLs of the state ports of the installation's gateways, this one too."""
        ...

    async def run(self) -> None:
        """Keep all of them current until cancelled."""
        ...

    async def wait_synced(self) -> None:
        """Return after the first complete list of each."""
        ...


class StateSource(Protocol):
    """Reads state documents under one deadline. tls: verifies pods that speak it."""

    tls: PodTls

    async def states(
        self,
        targets: Mapping[str, str],
        *,
        deadline_s: float,
        prefixes: Mapping[str, FollowedPrefixes] | None = None,
    ) -> dict[str, RuntimeState]:
        """Documents by the targets' names; a pod that does not answer is absent. prefixes: sets that follow theirs."""
        ...


class InformerSource:
    """Objects of one namespace or of all, from informers. gateway_namespace: of the gateways, "" for one alone."""

    def __init__(self, cluster: Cluster, *, namespace: str, gateway_namespace: str = "") -> None:
        self.changed = asyncio.Event()
        self._services = Informer(
            cluster, kinds.INFERENCE_SERVICE, namespace=namespace, transform=_service, on_change=self._mark
        )

        self._routes = Informer(cluster, kinds.MODEL_ROUTE, namespace=namespace, transform=_route, on_change=self._mark)

        def labelled(kind: kinds.Kind, transform: Callable[[Json], Json]) -> Informer:
            return Informer(
                cluster,
                kind,
                namespace=namespace,
                selector=names.LABEL_SERVICE,
                transform=transform,
                on_change=self._mark,
            )

        self._pods = labelled(kinds.POD, _pod)
        self._workloads = [
            labelled(kind, partial(_workload, kind.kind)) for kind in (kinds.DEPLOYMENT, kinds.REPLICA_SET)
        ]

        self._gateway_namespace = gateway_namespace
        self._gateways = Informer(
            cluster,
            kinds.POD,
            namespace=gateway_namespace,
            selector=gateway_pods.SELECTOR,
            transform=_gateway,
        )

    def gateways(self) -> Iterable[str]:
        """Base URLs of the gateways' state ports."""
        ours = (pod for pod in self._gateways.objects.values() if gateway_pods.is_gateway(pod, self._gateway_namespace))
        return tuple(url for pod in ours if (url := gateway_pods.state_url(pod)))

    async def gateways_listed(self) -> None:
        """Return after the first list of the gateways."""
        await self._gateways.synced.wait()

    def routes(self) -> Iterable[Json]:
        """All ModelRoutes."""
        return tuple(self._routes.objects.values())

    def services(self) -> Iterable[Json]:
        """All InferenceServices."""
        return tuple(self._services.objects.values())

    def pods(self) -> Iterable[Json]:
        """All pods that carry a service's label."""
        return tuple(self._pods.objects.values())

    def workloads(self) -> Iterable[Json]:
        """All Deployments and ReplicaSets that carry a service's label."""
        return tuple(found for informer in self._workloads for found in informer.objects.values())

    async def run(self) -> None:
        """Run all informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in (*self._informers(), self._routes):
                group.create_task(informer.run())
            if self._gateway_namespace:
                group.create_task(self._gateways.run())

    async def wait_synced(self) -> None:
        """Return after all first lists but that of the gateways: without it requests are routed too. So are they where
        the kind ModelRoute, or the right to read it, is missing, as while Kvasir is upgraded."""
        for informer in self._informers():
            await informer.synced.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._routes.synced.wait(), ROUTES_S)

    def _informers(self) -> tuple[Informer, ...]:
        return self._services, self._pods, *self._workloads

    def _mark(self, _key: object) -> None:
        self.changed.set()


def _kept(obj: Json, *fields: str) -> Json:
    metadata: dict[str, Any] = obj.get("metadata") or {}
    return {field: metadata[field] for field in fields if field in metadata}


def _service(obj: Json) -> Json:
    """The fields of a service that routing reads."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    read = {"model": ("servedName", "aliases"), "autoscaling": ("mode",), "runtime": ("tenantHeader",)}
    kept: Json = {
        part: {field: spec[part][field] for field in fields if field in spec[part]}
        for part, fields in read.items()
        if spec.get(part) is not None
    }
    return {
        "metadata": _kept(obj, "namespace", "name", "uid", "creationTimestamp"),
        "spec": {"model": {}, **kept, "replicas": spec.get("replicas", 1)},
        "status": {
            "refusedNames": status.get("refusedNames") or [],
            "desiredReplicas": status.get("desiredReplicas") or 0,
            "coldStart": {"seconds": (status.get("coldStart") or {}).get("seconds") or 0},
            "conditions": [
                {"type": c["type"], "status": c.get("status")}
                for c in status.get("conditions") or ()
                if c.get("type") == names.CONDITION_STALLED
            ],
        },
    }


def _route(obj: Json) -> Json:
    """A ModelRoute without its status, which routing does not read."""
    return {"metadata": _kept(obj, "namespace", "name", "creationTimestamp"), "spec": obj.get("spec") or {}}


def _pod(obj: Json) -> Json:
    """The fields of a pod that routing reads, so that other changes of a pod cause no work."""
    status = obj.get("status") or {}
    metadata = _kept(obj, "namespace", "name", "labels", "deletionTimestamp", "ownerReferences")
    notes = (obj.get("metadata") or {}).get("annotations") or {}
    metadata["annotations"] = {k: v for k, v in notes.items() if k in KEPT_ANNOTATIONS}
    containers = (obj.get("spec") or {}).get("containers") or ()
    return {
        "metadata": metadata,
        "spec": {
            "nodeName": (obj.get("spec") or {}).get("nodeName"),
            "containers": [{"ports": container.get("ports") or []} for container in containers],
        },
        "status": {
            "podIP": status.get("podIP"),
            "phase": status.get("phase"),
            "conditions": [c for c in status.get("conditions") or () if c.get("type") == "Ready"],
            "containerStatuses": [
                {"name": c["name"], "started": c.get("started")} for c in status.get("containerStatuses") or ()
            ],
        },
    }


def _gateway(obj: Json) -> Json:
    """The fields of a gateway's pod that tell whether it is one, and where it is."""
    spec = obj.get("spec") or {}
    ports = [{"ports": container.get("ports") or []} for container in spec.get("containers") or ()]
    return {
        "metadata": _kept(obj, "namespace", "name", "labels", "ownerReferences"),
        "spec": {"serviceAccountName": spec.get("serviceAccountName"), "containers": ports},
        "status": {field: (obj.get("status") or {}).get(field) for field in ("phase", "podIP")},
    }


def _workload(kind: str, obj: Json) -> Json:
    """Whose it is. kind: an item of a list does not say it."""
    return {"kind": kind, "metadata": _kept(obj, "namespace", "name", "uid", "ownerReferences")}
