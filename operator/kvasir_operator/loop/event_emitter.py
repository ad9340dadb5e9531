"""Which events follow from a reconcile: one per change, compared with the status that was written before."""

from kvasir_api.names import CONDITION_NAME_CONFLICT, CONDITION_READY
from kvasir_api.status import Condition, InferenceServiceStatus
from kvasir_kube.kinds import Json, Key
from kvasir_operator.loop.recorder import Recorder
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed, Revision
from kvasir_operator.status.summary import Summary

STALLED_EVENTS = {
    "InvalidSpec": "InvalidSpec",
    "Unsupported": "InvalidSpec",
    "BadPatch": "InvalidSpec",
    "ModelLoadFailed": "ModelLoadFailed",
    "ModelUnavailable": "ModelUnavailable",
    "VolumeInUse": "ModelUnavailable",
    "NameConflict": "NameConflict",
    "QuotaExceeded": "Refused",
    "Forbidden": "Refused",
    "Rejected": "Refused",
    "TooSmall": "TooSmall",
    "KeysMissing": "KeysMissing",
    "NoDevice": "DeviceUnusable",
    "DriverTooOld": "DeviceUnusable",
    "OutOfDeviceMemory": "DeviceUnusable",
}


class EventEmitter:
    """Compares before and after. What the cluster remembers decides, so a restart repeats nothing."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._failed: dict[Key, set[str]] = {}
        self._watchdog_ends: dict[Key, set[tuple[str, int]]] = {}

    async def revision(self, seen: Observed, service: Json, current: Revision) -> None:
        """An event when the spec requires other pods than before."""
        if current.id == seen.status.rollout.current_revision or seen.revision(current.id) == current:
            return
        await self._recorder.event(service, "RevisionCreated", f"revision {current.id}, number {current.number}")

    async def changes(self, seen: Observed, service: Json, status: InferenceServiceStatus, answer: Summary) -> None:
        """Events about readiness, refusals, the rollout, failing pods and scaling by hand."""
        before, after = (_condition(part.conditions, CONDITION_READY) for part in (seen.status, status))
        was_ready = before is not None and before.status == "True"
        if answer.mode == "ready" and not was_ready and status.desired_replicas:
            await self._recorder.event(service, "Ready", answer.message)
        event = STALLED_EVENTS.get(answer.reason)
        if event and answer.mode == "stalled" and not _same(before, after, answer.cause):
            await self._recorder.event(service, event, answer.message, kind="Warning")
        conflict = _condition(status.conditions, CONDITION_NAME_CONFLICT)
        if conflict is not None and not _condition(seen.status.conditions, CONDITION_NAME_CONFLICT):
            await self._recorder.event(service, "NameConflict", conflict.message, kind="Warning")
        await self._course(seen, service, status)
        rolled = status.rollout.last_good_revision
        if rolled and rolled != seen.status.rollout.last_good_revision and seen.status.rollout.last_good_revision:
            await self._recorder.event(service, "RolloutComplete", f"every replica runs revision {rolled}")
        await self._failures(seen, service)
        await self._watchdogs(seen, service)
        await self._by_hand(seen, service, status)

    def forget(self, name: Key) -> None:
        """The service is gone."""
        self._failed.pop(name, None)
        self._watchdog_ends.pop(name, None)

    async def _course(self, seen: Observed, service: Json, status: InferenceServiceStatus) -> None:
        before, after = seen.status.rollout, status.rollout
        if after.unavailable_classes and after.unavailable_classes != before.unavailable_classes:
            waited = seen.spec.resources.accelerator.fallback_seconds
            note = (
                f"{after.unavailable_classes[-1]} found no node for any replica in {waited} s; the next class is tried"
            )
            await self._recorder.event(service, "AcceleratorClassFallback", note, kind="Warning")
        if after.strategy == "InPlace" and seen.spec.rollout.strategy != "InPlace" and before.strategy != "InPlace":
            await self._recorder.event(service, "RollingInPlace", after.message)
        if after.rolled_back_revision and after.rolled_back_revision != before.rolled_back_revision:
            note = f"{after.rolled_back_revision} was rolled back to {after.last_good_revision}: {after.message}"
            await self._recorder.event(service, "RolledBack", note, kind="Warning")
        if (
            after.step
            and (after.step, after.step_since) != (before.step, before.step_since)
            and after.phase == "Canary"
        ):
            await self._recorder.event(service, "CanaryStep", after.message)

    async def _failures(self, seen: Observed, service: Json) -> None:
        name = (seen.namespace, seen.name)
        known = self._failed.get(name, set())
        failed = {r.uid: r for r in seen.replicas if r.phase == "failed"}
        for uid_, r in failed.items():
            if uid_ not in known:
                note = f"{r.name}: {r.last_words or 'no reason was reported'}"
                await self._recorder.event(service, "ReplicaFailed", note, kind="Warning", related=_pod(seen, r))
        if failed:
            self._failed[name] = set(failed)
        else:
            self._failed.pop(name, None)

    async def _watchdogs(self, seen: Observed, service: Json) -> None:
        """Containers that their watchdog ended: they are started again, so that no replica counts as failed.

        Ends that are found at the first look were reported by the operator that ran before.
        """
        name = (seen.namespace, seen.name)
        ended = {(r.uid, r.ends): r for r in seen.replicas if r.watchdog}
        for end in ended.keys() - self._watchdog_ends.get(name, ended.keys()):
            r = ended[end]
            await self._recorder.event(
                service, "WatchdogRestarted", f"{r.name}: {r.watchdog}", kind="Warning", related=_pod(seen, r)
            )
        self._watchdog_ends[name] = set(ended)

    async def _by_hand(self, seen: Observed, service: Json, status: InferenceServiceStatus) -> None:
        before, after = seen.status.desired_replicas, status.desired_replicas
        observed_before = seen.status.observed_generation > 0
        if seen.spec.autoscaling is not None or not observed_before or before == after or seen.invalid:
            return
        reason = "ScaledUp" if after > before else "ScaledDown"
        cause = "spec.autoscaling was removed, " if seen.status.autoscaling is not None else ""
        note = f"{before} → {_replicas(after)}: {cause}spec.replicas is {after}"
        await self._recorder.event(service, reason, note)


def _pod(seen: Observed, r: Replica) -> Json:
    return {"metadata": {"namespace": seen.namespace, "name": r.name, "uid": r.uid}}


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _condition(conditions: list[Condition], kind: str) -> Condition | None:
    return next((c for c in conditions if c.type == kind), None)


def _same(before: Condition | None, after: Condition | None, cause: str) -> bool:
    """Whether two conditions are the same but for their times, and for how many replicas are ready by now."""
    if before is None or after is None:
        return before is after
    same = before.message == after.message or (cause and before.message.endswith(cause))
    return bool(same) and (before.status, before.reason) == (after.status, after.reason)
