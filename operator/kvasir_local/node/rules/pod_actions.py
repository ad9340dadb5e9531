"""Computes the next actions on a pod's containers: start, stop, wait, or remove the pod. Called by its worker.

Level-triggered: the result depends only on the pod, the record and the time, never on earlier events.
"""

from dataclasses import dataclass, replace

from kvasir_kube.kinds import Json
from kvasir_local.node.rules.kinds import containers, epoch, init_containers
from kvasir_local.node.rules.pod_record import ContainerRecord, Failure, PodRecord, Running, Terminated, Waiting

GONE_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class StartContainer:
    """Start this container now."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopContainer:
    """Stop this container; all its processes end by the deadline (seconds since 1970).

    why: empty when the pod is deleted.
    """

    name: str
    deadline: float
    why: str


@dataclass(frozen=True, slots=True)
class RemovePod:
    """No container runs: clean up and delete the pod from the API."""


PodAction = StartContainer | StopContainer | RemovePod


@dataclass(frozen=True, slots=True, kw_only=True)
class PodActions:
    """Actions to carry out now, the record with its waiting reasons, and when to sync again without a request."""

    actions: tuple[PodAction, ...]
    record: PodRecord
    wake_at: float | None = None


def compute_pod_actions(pod: Json, record: PodRecord, *, gone: bool, now: float) -> PodActions:
    """The next step of a pod. gone: the API server no longer has it. now: seconds since 1970."""
    deadline = _deadline(pod, gone=gone, now=now)
    if deadline is not None:
        return _wind_down(record, deadline, "", remove=True)
    record = _with_deadline_passed(pod, record, now)
    if record.failure or record.settled:
        grace = float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
        return _wind_down(record, now + grace, record.failure.message if record.failure else "", remove=False)
    found = _advance(pod, record, now)
    limit = _active_deadline(pod, record)
    return found if limit is None else replace(found, wake_at=min(limit, found.wake_at or limit))


def will_restart(pod: Json, ended: Terminated, *, init: bool) -> bool:
    """Whether the restart policy starts this container again."""
    policy = pod["spec"].get("restartPolicy") or "Always"
    if ended.exit_code == 0:
        return policy == "Always" and not init
    return bool(policy != "Never")


def initialized(pod: Json, record: PodRecord) -> bool:
    """Whether every init container has completed."""
    return all(_completed(record.containers[item["name"]]) for item in init_containers(pod["spec"]))


def _completed(container: ContainerRecord) -> bool:
    return isinstance(container.state, Terminated) and container.state.exit_code == 0


def _deadline(pod: Json, *, gone: bool, now: float) -> float | None:
    deleted = pod["metadata"].get("deletionTimestamp")
    if gone:
        return now + GONE_GRACE_S
    return max(epoch(deleted), now) if deleted else None


def _active_deadline(pod: Json, record: PodRecord) -> float | None:
    limit = pod["spec"].get("activeDeadlineSeconds")
    return record.started_at + limit if limit else None


def _with_deadline_passed(pod: Json, record: PodRecord, now: float) -> PodRecord:
    limit = _active_deadline(pod, record)
    if limit is None or now < limit or record.failure or record.settled:
        return record
    return replace(
        record, failure=Failure("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
    )


def _wind_down(record: PodRecord, deadline: float, why: str, *, remove: bool) -> PodActions:
    running = [name for name, item in record.containers.items() if isinstance(item.state, Running)]
    if running:
        return PodActions(
            actions=tuple(StopContainer(name=name, deadline=deadline, why=why) for name in running), record=record
        )
    return PodActions(actions=(RemovePod(),) if remove else (), record=replace(record, settled=True))


def _advance(pod: Json, record: PodRecord, now: float) -> PodActions:
    for container in init_containers(pod["spec"]):
        known = record.containers[container["name"]]
        if _completed(known):
            continue
        if isinstance(known.state, Terminated) and not will_restart(pod, known.state, init=True):
            return PodActions(actions=(), record=replace(record, settled=True))
        return _next(pod, container, record, now)
    found = PodActions(actions=(), record=record)
    for container in containers(pod["spec"]):
        step = _next(pod, container, found.record, now)
        wakes = [wake for wake in (found.wake_at, step.wake_at) if wake is not None]
        found = PodActions(actions=found.actions + step.actions, record=step.record, wake_at=min(wakes, default=None))
    return replace(found, record=replace(found.record, settled=_all_over(pod, found.record)))


def _all_over(pod: Json, record: PodRecord) -> bool:
    states = [record.containers[item["name"]].state for item in containers(pod["spec"])]
    return all(isinstance(state, Terminated) and not will_restart(pod, state, init=False) for state in states)


def _next(pod: Json, container: Json, record: PodRecord, now: float) -> PodActions:
    known = record.containers[container["name"]]
    if isinstance(known.state, Running):
        if known.image == container["image"]:
            return PodActions(actions=(), record=record)
        grace = float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
        why = f"Container {known.name} definition changed, will be restarted"
        return PodActions(actions=(StopContainer(name=known.name, deadline=now + grace, why=why),), record=record)
    is_init = container in init_containers(pod["spec"])
    if isinstance(known.state, Terminated) and not will_restart(pod, known.state, init=is_init):
        return PodActions(actions=(), record=record)
    if now >= known.not_before:
        return PodActions(actions=(StartContainer(known.name),), record=record)
    if isinstance(known.state, Terminated):
        wait = f"back-off {known.not_before - known.state.finished_at:.0f}s restarting failed container={known.name}"
        waiting = Waiting("CrashLoopBackOff", f"{wait} pod={pod['metadata']['name']}")
        record = record.with_container(replace(known, state=waiting, last=known.state))
    return PodActions(actions=(), record=record, wake_at=known.not_before)
