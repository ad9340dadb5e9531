"""A pod that looks at a service's model, as decisions see it: whether it has ended, and its last words.

Called by the loop when it observes; knows the shape of a pod, no client and no clock.
"""

from dataclasses import dataclass

from kvasir_api import names
from kvasir_kube.kinds import Json, has_ended
from kvasir_operator.observed.replica import epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """One pod. created: epoch seconds. unplaced: the scheduler finds no node for it. ended: it will not say more.

    said: its last words, empty when it failed. trouble: why it failed, or why it does not run yet.
    """

    name: str
    uid: str = ""
    created: float = 0.0
    unplaced: bool = False
    ended: bool = False
    leaving: bool = False
    said: str = ""
    trouble: str = ""


def inspection(pod: Json) -> Inspection:
    """A pod object as an Inspection."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    state = (_container(status).get("state") or {}) if status else {}
    died = state.get("terminated") or {}
    words = str(died.get("message") or "").strip()
    well = bool(died) and died.get("exitCode") == 0
    scheduled: Json = next((c for c in status.get("conditions") or () if c.get("type") == "PodScheduled"), {})
    return Inspection(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        created=epoch(metadata.get("creationTimestamp")) or 0.0,
        unplaced=scheduled.get("status") == "False",
        ended=bool(died) or has_ended(pod),
        leaving=bool(metadata.get("deletionTimestamp")),
        said=words if well else "",
        trouble="" if well else _trouble(status, state, scheduled, words),
    )


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


def _container(status: Json) -> Json:
    statuses = status.get("containerStatuses") or ()
    return next((found for found in statuses if found.get("name") == names.COMPONENT_INSPECT), {})
