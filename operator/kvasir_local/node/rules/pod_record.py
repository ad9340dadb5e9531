"""The node's record of a pod's containers; rebuilt from the pod's status after a restart of the node."""

from dataclasses import dataclass, replace

from kvasir_kube.kinds import Json
from kvasir_local.node.rules.backoff import NONE, Backoff
from kvasir_local.node.rules.kinds import containers, epoch, init_containers


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not running, and why."""

    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Running since started_at (seconds since 1970)."""

    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminated:
    """Ended. Times in seconds since 1970; message: its termination message."""

    exit_code: int
    reason: str
    message: str = ""
    started_at: float
    finished_at: float
    container_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """One container. not_before: when it may start next; image: the one that it was last started from."""

    name: str
    state: Waiting | Running | Terminated = Waiting("ContainerCreating")
    last: Terminated | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False
    backoff: Backoff = NONE
    not_before: float = 0.0
    container_id: str = ""
    image: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the whole pod failed: reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """The state of one pod. settled: a terminal phase was reached and no container starts any more."""

    ip: str
    started_at: float
    containers: dict[str, ContainerRecord]
    failure: Failure | None = None
    settled: bool = False

    def with_container(self, record: ContainerRecord) -> "PodRecord":
        """The record with one container replaced."""
        return replace(self, containers={**self.containers, record.name: record})


LOST_EXIT_CODE = 137


def fresh(pod: Json, *, ip: str, now: float) -> PodRecord:
    """The record of a pod as this node process first sees it.

    What ran under an earlier node process ended with it: such containers become terminated with reason
    ContainerStatusUnknown.
    """
    status = pod.get("status") or {}
    old = {
        item["name"]: item
        for item in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    }
    wanted = [item["name"] for item in (*init_containers(pod["spec"]), *containers(pod["spec"]))]
    started_at = epoch(status["startTime"]) if status.get("startTime") else now
    records = {
        name: _remembered(name, old[name], now) if name in old else ContainerRecord(name=name) for name in wanted
    }
    settled = status.get("phase") in ("Succeeded", "Failed")
    failure = Failure(status["reason"], status.get("message", "")) if settled and status.get("reason") else None
    return PodRecord(ip=ip, started_at=started_at, containers=records, failure=failure, settled=settled)


def _remembered(name: str, status: Json, now: float) -> ContainerRecord:
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated")
    container_id = (status.get("containerID") or "").rpartition("//")[2]
    found = ContainerRecord(
        name=name,
        last=_terminated(last, now) if last else None,
        restarts=status.get("restartCount") or 0,
        container_id=container_id,
        image=status.get("image") or "",
    )
    if "running" in state:
        lost = {
            "exitCode": LOST_EXIT_CODE,
            "reason": "ContainerStatusUnknown",
            "message": "ended with the node process that ran it",
        }
        return replace(
            found, state=_terminated({**lost, "startedAt": state["running"].get("startedAt")}, now, container_id)
        )
    if "terminated" in state:
        return replace(found, state=_terminated(state["terminated"], now, container_id))
    if found.last:  # it waited for its next start: the restart rule needs the last end
        return replace(found, state=found.last)
    return found


def _terminated(source: Json, now: float, container_id: str = "") -> Terminated:
    started, finished = source.get("startedAt"), source.get("finishedAt")
    return Terminated(
        exit_code=source["exitCode"],
        reason=source.get("reason") or "Error",
        message=source.get("message") or "",
        started_at=epoch(started) if started else now,
        finished_at=epoch(finished) if finished else now,
        container_id=container_id or (source.get("containerID") or "").rpartition("//")[2],
    )
