"""Is the service ready, being worked on, or stalled? An ordered list of checks; the first that answers counts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from kvasir_api import names
from kvasir_api.forecast import readable
from kvasir_operator.observed.model_pod import ModelPod
from kvasir_operator.observed.replica import Replica, epoch
from kvasir_operator.status.inputs import StatusInputs
from kvasir_operator.status.missing_nodes import missing_nodes
from kvasir_operator.status.refusals import refusal
from kvasir_operator.status.volume_conflict import volume_conflict

Mode = Literal["ready", "reconciling", "stalled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One answer. mode ready: Ready=True and nothing else; reconciling and stalled: that condition, and Ready=True only
    while another revision's replicas serve meanwhile. cause: the end of the message that stays the same while single
    replicas become ready; empty where the whole message does."""

    mode: Mode
    reason: str
    message: str
    cause: str = ""


def summary(found: StatusInputs) -> Summary:
    """What the service is now."""
    return next(answer for check in CHECKS if (answer := check(found)) is not None)


def _fault(found: StatusInputs) -> Summary | None:
    broken = found.resolved.violation
    return Summary(mode="stalled", reason=broken.reason, message=broken.message) if broken is not None else None


def _waiting(found: StatusInputs) -> Summary | None:
    return _reconciling("InspectingModel", found.waiting) if found.waiting else None


def _blocked(found: StatusInputs) -> Summary | None:
    if not found.applied.foreign:
        return None
    if stays := [one.where for one in found.applied.foreign if not one.leaves]:
        advice = "delete it, or give the service another name"
        message = f"{', '.join(stays)} exists and does not belong to this service: {advice}"
        return Summary(mode="stalled", reason="NameConflict", message=message)
    rest = ", ".join(one.where for one in found.applied.foreign)
    return _reconciling("Progressing", f"{rest} of a service that had this name before is not gone yet")


def _trouble(found: StatusInputs) -> Summary | None:
    refused = found.applied.refused
    if not refused:
        return None
    if found.applied.refused_reason:
        return Summary(mode="stalled", reason=found.applied.refused_reason, message=refused)
    return _reconciling("Progressing", refused)


def _rolled_back(found: StatusInputs) -> Summary | None:
    if found.plan is None or not found.plan.target.rolled_back:
        return None
    head = found.plan.target
    message = f"revision {head.rolled_back} was rolled back to {head.revision}: {head.why}"
    return Summary(mode="stalled", reason="RolledBack", message=message)


def _held(found: StatusInputs) -> Summary | None:
    if found.plan is None or found.plan.target.phase not in HELD:
        return None
    head = found.plan.target
    how_far = f"{found.updated_ready} of {_replicas(found.wanted)} ready in revision {found.current}"
    return _reconciling(HELD[head.phase], f"{how_far}; {head.why}")


def _zero(found: StatusInputs) -> Summary | None:
    if found.wanted:
        return None
    return Summary(mode="ready", reason="ScaledToZero", message=_why_zero(found))


def _why_zero(found: StatusInputs) -> str:
    """What sets the count, which in no mode but Active is the autoscaler."""
    rules, scaled = found.seen.spec.autoscaling, found.scaler.status
    if rules is None or scaled is None or rules.mode in ("Advisory", "External"):
        return "spec.replicas is 0"
    if rules.mode != "Active":
        return f"spec.autoscaling.mode is {rules.mode}, and the count is 0"
    return scaled.message or "0 replicas: by a decision of which no reason is known"


def _refused(found: StatusInputs) -> Summary | None:
    refusal = next((r.refusal for r in found.updated if r.refusal), "")
    if not refusal or found.updated_ready:
        return None
    reason = next((why for prefix, why in names.REFUSALS.items() if refusal.startswith(prefix)), "ModelLoadFailed")
    if refusal.startswith(names.MODEL_UNAVAILABLE):
        refusal = f"spec.model.uri: {refusal.removeprefix(names.MODEL_UNAVAILABLE)}"
    return Summary(mode="stalled", reason=reason, message=refusal)


def _not_fetched(found: StatusInputs) -> Summary | None:
    """A replica waits for its model, which the pod that fetches it on its node does not get."""
    nodes = {r.node for r in found.updated if (r.phase == "starting" or r.downloads) and r.node}
    pod = next((pod for pod in found.seen.fetches if pod.node in nodes and _fails(pod, found.now)), None)
    if pod is None or found.updated_ready >= found.minimum:
        return None
    why = pod.trouble.removeprefix("Error: ") or "no reason was reported"
    reason = names.REFUSALS[names.MODEL_UNAVAILABLE]
    return Summary(mode="stalled", reason=reason, message=f"spec.model.uri: {why} ({pod.name} on {pod.node})")


def _fails(pod: ModelPod, now: str) -> bool:
    """One that was started again and has run for a while downloads, as far as is known."""
    began = pod.running_since
    return pod.fails and (began is None or (epoch(now) or 0.0) - began < FETCHES_AGAIN_S)


def _locked(found: StatusInputs) -> Summary | None:
    """Replicas that wait for the first key of clients."""
    waits = next((r for r in found.updated if r.phase != "ready" and r.reading is not None and r.reading.locked), None)
    if waits is None or waits.reading is None or found.updated_ready:
        return None
    message = f"{waits.name} rejects every request: {waits.reading.locked} ({found.missing_key})"
    return Summary(mode="stalled", reason="KeysMissing", message=message)


def _all_ready(found: StatusInputs) -> Summary | None:
    if found.updated_ready < found.wanted or found.outdated:
        return None
    return Summary(
        mode="ready", reason="AllReplicasReady", message=f"{_replicas(found.wanted)} ready, revision {found.current}"
    )


def _out_of_memory(found: StatusInputs) -> Summary | None:
    """No start of a replica got by with its memory, often enough to be no accident."""
    victim = next((r for r in found.updated if r.out_of_memory and r.restarts >= OUT_OF_MEMORY_TIMES), None)
    if victim is None or found.updated_ready:
        return None
    advice = "raise spec.resources.memory, or lower spec.runtime.kvCacheTokens or memoryPercent"
    message = f"{victim.name} was killed {victim.restarts} times: {victim.last_words}; {advice}"
    return Summary(mode="stalled", reason="OutOfMemory", message=message)


def _volume(found: StatusInputs) -> Summary | None:
    """A replica that no waiting starts, as long as another one has the volume elsewhere."""
    conflict = volume_conflict(found)
    if not conflict or found.updated_ready >= found.minimum:
        return None
    return Summary(mode="stalled", reason="VolumeInUse", message=conflict)


def _overdue(found: StatusInputs) -> Summary | None:
    if not found.overdue:
        return None
    deadline = found.seen.spec.rollout.progress_deadline_seconds
    message = f"no progress for {deadline} s (spec.rollout.progressDeadlineSeconds): {_why_not_ready(found).message}"
    return Summary(mode="stalled", reason="ProgressDeadlineExceeded", message=message)


def _refused_pods(found: StatusInputs) -> Summary | None:
    """Pods that the cluster refuses to create until something else changes."""
    reason = refusal(found.refused_pods)
    if not reason or found.updated_ready >= found.minimum:
        return None
    message = f"{found.updated_ready} of {_replicas(found.wanted)} ready; {found.refused_pods}"
    return Summary(mode="stalled", reason=reason, message=message, cause=found.refused_pods)


def _rolling_out(found: StatusInputs) -> Summary | None:
    if not found.outdated:
        return None
    return _reconciling(
        "RollingOut",
        f"{found.updated_ready} of {_replicas(found.wanted)} ready in revision {found.current}, "
        f"{found.outdated} still of an older one{_detail(found)}{_way(found)}",
    )


def _way(found: StatusInputs) -> str:
    """Why the rollout does not go as the spec says, if it does not."""
    return f"; {found.plan.target.why}" if found.plan is not None and found.plan.target.why else ""


def _detail(found: StatusInputs) -> str:
    """What keeps a replica of the current revision from being ready, or what it does on its way there."""
    stuck = next((r for r in found.updated if r.phase in ("failed", "unschedulable")), None)
    if stuck is not None:
        return f"; {stuck.name}: {stuck.last_words}"
    return _start(found)


def _start(found: StatusInputs) -> str:
    """What the replica of the current revision does that is nearest to ready; empty without one that starts."""
    if fetches := _downloading(found):
        return f"; {fetches.name} downloads the model, {_share(fetches)}"
    if loads := _loading(found):
        return f"; {loads.name} loads the model"
    begins = next((r for r in found.updated if r.phase == "starting"), None)
    return f"; {begins.name} waits for its container" if begins is not None else ""


def _loading(found: StatusInputs) -> Replica | None:
    """A replica whose container runs loads the model, also while it is too busy to report that."""
    return next((r for r in found.updated if r.phase == "loading" or (r.phase == "starting" and r.started_at)), None)


def _downloading(found: StatusInputs) -> Replica | None:
    """The replica that is nearest to ready while none has its model yet."""
    fetching = [r for r in found.updated if r.downloads]
    if any(r.phase == "loading" for r in found.updated):
        return None
    return max(fetching, key=lambda r: (r.downloaded_bytes, r.name), default=None)


def _share(replica: Replica) -> str:
    """In percent, since a message with bytes would change with every reading."""
    total = replica.reading.download_bytes if replica.reading is not None else 0
    return f"{100 * replica.downloaded_bytes // total} % of {readable(total)}" if total else "of unknown size"


def _minimum(found: StatusInputs) -> Summary | None:
    if found.updated_ready < found.minimum:
        return None
    message = f"{found.updated_ready} of {_replicas(found.wanted)} ready{_detail(found)}"
    return Summary(mode="ready", reason="MinimumAvailable", message=message)


def _why_not_ready(found: StatusInputs) -> Summary:
    """Why too few replicas are ready, without saying how long that has lasted. One that has ended says why another is
    needed, not why that one is not ready."""
    how_many = f"{found.updated_ready} of {_replicas(found.wanted)} ready"
    if failed := found.first("failed"):
        reason = "Scaling" if found.updated_ready else _down(failed)
        return _reconciling(reason, f"{how_many}; {failed.name} fails: {failed.last_words or 'no reason was reported'}")
    if unplaced := found.first("unschedulable"):
        return _reconciling("Unschedulable", f"{how_many}; {unplaced.name}: {unplaced.last_words}")
    if refused := found.refused_pods:
        return _reconciling("Scaling" if found.updated_ready else "MinimumNotAvailable", f"{how_many}; {refused}")
    if lacking := missing_nodes(found):
        return _reconciling("Scaling" if found.updated_ready else "NodesNotMade", f"{how_many}; {lacking}")
    ended = found.ended
    message = f"{how_many}{_start(found)}{f'; {ended.name} has ended: {ended.last_words}' if ended else ''}"
    if found.updated_ready:
        return _reconciling("Scaling", message)
    if _downloading(found):
        return _reconciling("ModelDownloading", message)
    return _reconciling("ModelLoading" if _loading(found) else "MinimumNotAvailable", message)


def _down(failed: Replica) -> str:
    """Why no replica is ready, by one that fails."""
    if failed.image_failure:
        return "ImagePullFailed"
    return "DeviceFailed" if failed.device_fault else "CrashLooping"


OUT_OF_MEMORY_TIMES: Final = 3
FETCHES_AGAIN_S: Final = 60.0
HELD: Final = {"Canary": "RollingOut", "Held": "RolloutHeld", "Paused": "RolloutPaused"}

CHECKS: Final[tuple[Callable[[StatusInputs], Summary | None], ...]] = (
    _fault,
    _waiting,
    _blocked,
    _trouble,
    _rolled_back,
    _held,
    _zero,
    _refused,
    _not_fetched,
    _locked,
    _all_ready,
    _out_of_memory,
    _volume,
    _overdue,
    _refused_pods,
    _rolling_out,
    _minimum,
    _why_not_ready,
)


def _reconciling(reason: str, message: str) -> Summary:
    return Summary(mode="reconciling", reason=reason, message=message)


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"
