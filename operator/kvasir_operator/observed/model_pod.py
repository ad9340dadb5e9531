"""A pod that looks at a service's model or fetches it, as decisions see it: whether it has ended, its last words.

Called by the loop when it observes; knows the shape of a pod, no client and no clock.
"""

from dataclasses import dataclass

from kvasir_api import names
from kvasir_kube.kinds import Json, has_ended
from kvasir_operator.observed.replica import FAILED_WAITS, epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPod:
    """One pod. created: epoch seconds. unplaced: the scheduler finds no node for it. ended: it will not say more.

    ended_at: when its container ended, epoch seconds. node: where it runs. running_since: of its container, epoch
    seconds; None while it does not run. fails: its last attempt did. well: its container ended with success. said: its
    last words, empty when it failed. trouble: why it failed, or why it does not run yet.
    """

    name: str
    uid: str = ""
    created: float = 0.0
    unplaced: bool = False
    ended: bool = False
    ended_at: float | None = None
    leaving: bool = False
    node: str = ""
    running_since: float | None = None
    fails: bool = False
    well: bool = False
    said: str = ""
    trouble: str = ""


def model_pod(pod: Json) -> ModelPod:
    """A pod object as an ModelPod."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    component = str((metadata.get("labels") or {}).get(names.LABEL_COMPONENT, ""))
    state = (_container(status, component).get("state") or {}) if status else {}
    died = state.get("terminated") or {}
    before = (_container(status, component).get("lastState") or {}).get("terminated") or {}
    words = str((died or before).get("message") or "").strip()
    well = bool(died) and died.get("exitCode") == 0
    scheduled: Json = next((c for c in status.get("conditions") or () if c.get("type") == "PodScheduled"), {})
    return ModelPod(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        created=epoch(metadata.get("creationTimestamp")) or 0.0,
        unplaced=scheduled.get("status") == "False",
        ended=bool(died) or has_ended(pod),
        ended_at=epoch(died.get("finishedAt")),
        leaving=bool(metadata.get("deletionTimestamp")),
        node=str((pod.get("spec") or {}).get("nodeName") or ""),
        running_since=epoch((state.get("running") or {}).get("startedAt")),
        fails=not well and _fails(status, state, died or before),
        well=well,
        said=words if well else "",
        trouble="" if well else _trouble(status, state, scheduled, words),
    )


def _fails(status: Json, state: Json, died: Json) -> bool:
    waits = str((state.get("waiting") or {}).get("reason") or "")
    return status.get("phase") == "Failed" or bool(died.get("exitCode")) or waits in FAILED_WAITS


def _trouble(status: Json, state: Json, scheduled: Json, words: str) -> str:
    if words:
        return words.splitlines()[-1].strip()[:300]
    waiting = state.get("waiting") or {}
    said = (
        status.get("message")
        or (state.get("terminated") or {}).get("reason")
        or (scheduled.get("message") if scheduled.get("status") == "False" else "")
        or ": ".join(str(waiting[part]) for part in ("reason", "message") if waiting.get(part))
    )
    return str(said or "")[:300]


def _container(status: Json, component: str) -> Json:
    """The one that is named as the pod's component is."""
    statuses = status.get("containerStatuses") or ()
    return next((found for found in statuses if found.get("name") == component), {})
