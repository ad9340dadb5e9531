"""What the demo shows of the cluster: one snapshot of a service's status and its pods' `/state` documents."""

from dataclasses import dataclass
from typing import Any

from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_kube import kinds
from kvasir_kube.cluster import Cluster
from kvasir_kube.kinds import Json
from kvasir_kube.state_reader import StateReader, url

READ_DEADLINE_S = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One row of the table. Tokens are sums over the pods that answered."""

    wanted: int
    ready: int
    running: int
    waiting: int
    pinned_tokens: int
    cached_tokens: int
    free_tokens: int
    reason: str


class ServiceView:
    """Reads snapshots of one service."""

    def __init__(self, *, cluster: Cluster, reader: StateReader, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._reader = reader
        self._namespace = namespace
        self._name = name

    async def service(self) -> Json:
        """The resource as it is now."""
        return await self._cluster.get(kinds.INFERENCE_SERVICE, self._namespace, self._name)

    async def snapshot(self) -> Snapshot:
        """Status and readings of this moment."""
        service = await self.service()
        pods = await self._cluster.list(kinds.POD, self._namespace, f"{names.LABEL_SERVICE}={self._name}")
        targets = {
            str(pod["metadata"]["name"]): url(pod["status"]["podIP"], names.PORT_OPS, "")
            for pod in pods.items
            if (pod.get("status") or {}).get("podIP")
        }
        readings = await self._reader.states(targets, deadline_s=READ_DEADLINE_S)
        return summary(service.get("status") or {}, tuple(readings.values()))


def summary(status: dict[str, Any], readings: tuple[RuntimeState, ...]) -> Snapshot:
    """The row for a status and the readings of its pods."""
    scaling = status.get("autoscaling") or {}
    return Snapshot(
        wanted=status.get("desiredReplicas", 0),
        ready=status.get("readyReplicas", 0),
        running=sum(reading.running for reading in readings),
        waiting=sum(reading.waiting for reading in readings),
        pinned_tokens=sum(reading.kv.pinned_tokens for reading in readings),
        cached_tokens=sum(reading.kv.cached_tokens for reading in readings),
        free_tokens=sum(reading.kv.free_tokens for reading in readings),
        reason=scaling.get("message", ""),
    )


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """The condition of that type, or an empty one."""
    found = [item for item in status.get("conditions") or () if item.get("type") == kind]
    return found[0] if found else {}
