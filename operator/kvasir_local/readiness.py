"""Whether the workloads of the system namespace are up, and what each is waiting for, from what kubectl returns.

Pure: `install` asks it again and again while it waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """text: for the progress line; failing: names of pods whose containers end or cannot start, for the post-mortem."""

    ready: bool
    text: str
    failing: tuple[str, ...]


def readiness(deployments: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]) -> Readiness:
    """Ready when every Deployment has been observed and has as many available, updated replicas as it requires."""
    late = [deployment for deployment in deployments if not _available(deployment)]
    if deployments and not late:
        return Readiness(ready=True, text=_names(deployments), failing=())
    troubles = {pod["metadata"]["name"]: trouble for pod in pods if (trouble := _trouble(pod))}
    parts = [deployment["metadata"]["name"] for deployment in late] or ["no Deployment yet"]
    parts += [f"{name}: {trouble}" for name, trouble in troubles.items()]
    return Readiness(ready=False, text=", ".join(parts), failing=tuple(troubles))


def _available(deployment: Mapping[str, Any]) -> bool:
    status = deployment.get("status", {})
    wanted = deployment["spec"].get("replicas", 1)
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return False
    return bool(status.get("updatedReplicas", 0) >= wanted and status.get("availableReplicas", 0) >= wanted)


def _trouble(pod: Mapping[str, Any]) -> str | None:
    """Why this pod is not running, None when it runs or has only just begun."""
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        return f"{status.get('reason', 'Failed')}: {status.get('message', 'no message')}"
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting and waiting.get("reason") not in {"ContainerCreating", "PodInitializing"}:
            return f"{container['name']} {waiting.get('reason')} {waiting.get('message', '')}".rstrip()
        ended = container.get("state", {}).get("terminated", {})
        if ended.get("exitCode", 0) != 0:
            return f"{container['name']} ended with exit code {ended['exitCode']}"
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return f"{condition.get('reason', 'not scheduled')}: {condition.get('message', '')}"
    return None


def _names(deployments: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(deployment["metadata"]["name"] for deployment in deployments)
