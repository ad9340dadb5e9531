"""What the picker reads: objects of the API server, state documents of pods. Shells over kvasir_kube.

Both are protocols, so that tests pass lists of their own.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from kvasir_api import names
from kvasir_api.prefix_digest import FollowedPrefixes
from kvasir_api.state import RuntimeState
from kvasir_kube import kinds
from kvasir_kube.cluster import Cluster
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import Json


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

    async def run(self) -> None:
        """Keep all of them current until cancelled."""
        ...

    async def wait_synced(self) -> None:
        """Return after the first complete list of each."""
        ...


class StateSource(Protocol):
    """Reads state documents under one deadline."""

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
    """Objects of one namespace or of all, from informers."""

    def __init__(self, cluster: Cluster, *, namespace: str) -> None:
        self.changed = asyncio.Event()
        self._services = Informer(
            cluster, kinds.INFERENCE_SERVICE, namespace=namespace, transform=_service, on_change=self._mark
        )

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
            for informer in self._informers():
                group.create_task(informer.run())

    async def wait_synced(self) -> None:
        """Return after all first lists."""
        for informer in self._informers():
            await informer.synced.wait()

    def _informers(self) -> tuple[Informer, ...]:
        return self._services, self._pods, *self._workloads

    def _mark(self, _key: object) -> None:
        self.changed.set()


def _kept(obj: Json, *fields: str) -> Json:
    metadata: dict[str, Any] = obj.get("metadata") or {}
    return {field: metadata[field] for field in fields if field in metadata}


def _service(obj: Json) -> Json:
    """The fields of a service that routing reads."""
    model = (obj.get("spec") or {}).get("model") or {}
    return {
        "metadata": _kept(obj, "namespace", "name", "uid", "creationTimestamp"),
        "spec": {"model": {field: model[field] for field in ("servedName", "aliases") if field in model}},
        "status": {"refusedNames": (obj.get("status") or {}).get("refusedNames") or []},
    }


def _pod(obj: Json) -> Json:
    """The fields of a pod that routing reads, so that other changes of a pod cause no work."""
    status = obj.get("status") or {}
    metadata = _kept(obj, "namespace", "name", "labels", "deletionTimestamp", "ownerReferences")
    notes = (obj.get("metadata") or {}).get("annotations") or {}
    metadata["annotations"] = {k: v for k, v in notes.items() if k == names.ANNOTATION_DRAIN}
    containers = (obj.get("spec") or {}).get("containers") or ()
    return {
        "metadata": metadata,
        "spec": {"containers": [{"ports": container.get("ports") or []} for container in containers]},
        "status": {
            "podIP": status.get("podIP"),
            "phase": status.get("phase"),
            "conditions": [c for c in status.get("conditions") or () if c.get("type") == "Ready"],
            "containerStatuses": [
                {"name": c["name"], "started": c.get("started")} for c in status.get("containerStatuses") or ()
            ],
        },
    }


def _workload(kind: str, obj: Json) -> Json:
    """Whose it is. kind: an item of a list does not say it."""
    return {"kind": kind, "metadata": _kept(obj, "namespace", "name", "uid", "ownerReferences")}
