"""The status of a pod as the node reports it: phase, conditions, container states, from the record alone."""

from typing import Any

from kvasir_kube.kinds import Json
from kvasir_local.node.rules.kinds import containers, init_containers, timestamp
from kvasir_local.node.rules.pod_actions import initialized
from kvasir_local.node.rules.pod_record import ContainerRecord, PodRecord, Running, Terminated, Waiting


def pod_status(pod: Json, record: PodRecord, *, host_ip: str, now: float) -> dict[str, Any]:
    """The fields of status that a node owns, ready for server-side apply.

    Times of conditions are kept from the pod where their status is unchanged, so that an equal state gives an equal
    status.
    """
    status: dict[str, Any] = {
        "phase": phase(pod, record),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": record.ip,
        "podIPs": [{"ip": record.ip}],
        "startTime": timestamp(record.started_at),
        "conditions": _conditions(pod, record, now),
        "containerStatuses": [
            _container(record.containers[item["name"]], item, pod, record) for item in containers(pod["spec"])
        ],
    }
    if generation := pod["metadata"].get("generation"):
        status["observedGeneration"] = generation
    if inits := init_containers(pod["spec"]):
        status["initContainerStatuses"] = [
            _container(record.containers[item["name"]], item, pod, record) for item in inits
        ]
    if record.failure:
        status["reason"], status["message"] = record.failure.reason, record.failure.message
    return status


def phase(pod: Json, record: PodRecord) -> str:
    """Pending, Running, Succeeded or Failed, by the rules of the kubelet."""
    states = [record.containers[item["name"]] for item in containers(pod["spec"])]
    if record.settled:
        ended = all(isinstance(item.state, Terminated) and item.state.exit_code == 0 for item in states)
        return "Succeeded" if ended and not record.failure else "Failed"
    if not initialized(pod, record):
        return "Pending"
    never_ran = any(isinstance(item.state, Waiting) and item.last is None for item in states)
    return "Pending" if never_ran else "Running"


def differs(pod: Json, status: Json) -> bool:
    """Whether writing the status would change the pod; conditions of others are left out of the comparison."""
    known = pod.get("status") or {}
    conditions = {item["type"]: item for item in known.get("conditions") or ()}
    for name, value in status.items():
        if name == "conditions":
            if any(_words(conditions.get(item["type"]) or {}) != _words(item) for item in value):
                return True
        elif known.get(name) != value:
            return True
    return False


def _words(condition: Json) -> tuple[str | None, ...]:
    return tuple(condition.get(name) for name in ("status", "reason", "message", "lastTransitionTime"))


def _conditions(pod: Json, record: PodRecord, now: float) -> list[dict[str, Any]]:
    main = [record.containers[item["name"]] for item in containers(pod["spec"])]
    inits = [record.containers[item["name"]] for item in init_containers(pod["spec"])]
    over = phase(pod, record)
    unready = [item.name for item in main if not _is_ready(item)]
    if over in ("Succeeded", "Failed"):
        ready = ("False", "PodCompleted" if over == "Succeeded" else "PodFailed", "")
    elif unready:
        ready = ("False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    else:
        ready = ("True", "", "")
    if initialized(pod, record):
        init = ("True", "", "")
    else:
        left = [item.name for item in inits if not (isinstance(item.state, Terminated) and item.state.exit_code == 0)]
        init = ("False", "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(left)}]")
    wanted = {"PodReadyToStartContainers": ("False" if record.settled else "True", "", ""), "Initialized": init}
    wanted |= {"ContainersReady": ready, "Ready": ready}
    old = {item["type"]: item for item in (pod.get("status") or {}).get("conditions") or ()}
    return [_condition(kind, *parts, old.get(kind), now) for kind, parts in wanted.items()]


def _condition(kind: str, status: str, reason: str, message: str, old: Json | None, now: float) -> dict[str, Any]:
    kept = (
        old["lastTransitionTime"]
        if old and old["status"] == status and old.get("lastTransitionTime")
        else timestamp(now)
    )
    return {"type": kind, "status": status, "lastTransitionTime": kept, **_filled(reason=reason, message=message)}


def _is_ready(item: ContainerRecord) -> bool:
    return isinstance(item.state, Running) and item.ready


def _container(item: ContainerRecord, declared: Json, pod: Json, record: PodRecord) -> dict[str, Any]:
    is_init = declared in init_containers(pod["spec"])
    waits_for_init = not is_init and not initialized(pod, record) and isinstance(item.state, Waiting)
    state = item.state if not waits_for_init else Waiting("PodInitializing")
    running = isinstance(state, Running)
    status: dict[str, Any] = {
        "name": item.name,
        "image": declared["image"],
        "imageID": declared["image"] if item.container_id else "",
        "ready": isinstance(state, Terminated) and state.exit_code == 0 if is_init else _is_ready(item),
        "started": running and item.started,
        "restartCount": item.restarts,
        "state": _state(state),
        "lastState": _state(item.last) if item.last and item.last is not state else {},
    }
    if item.container_id:
        status["containerID"] = f"kvasir://{item.container_id}"
    return status


def _state(state: Waiting | Running | Terminated) -> dict[str, Any]:
    match state:
        case Waiting(reason, message):
            return {"waiting": _filled(reason=reason, message=message)}
        case Running(started_at):
            return {"running": {"startedAt": timestamp(started_at)}}
        case Terminated():
            times = {"startedAt": timestamp(state.started_at), "finishedAt": timestamp(state.finished_at)}
            container_id = f"kvasir://{state.container_id}" if state.container_id else ""
            words = _filled(reason=state.reason, message=state.message, containerID=container_id)
            return {"terminated": {"exitCode": state.exit_code, **words, **times}}


def _filled(**fields: str) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value}
