"""Runs inspection pods: creates one before replicas start, reads its termination message from the watch, deletes it.

What it is and what follows from it is decided in `desired.inspection`. What was found lives in the status, so that a
restart of the operator looks at nothing again.
"""

from dataclasses import dataclass, replace
from typing import Final

from kvasir_api.status import ModelStatus
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError
from kvasir_kube.kinds import POD, Json, Key
from kvasir_operator.desired.inspection import InspectionPlan, inspection_plan, is_running, known_model, refused
from kvasir_operator.desired.remote_model import is_unresolved
from kvasir_operator.loop.clock import Clock, rfc3339
from kvasir_operator.loop.recorder import Recorder
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import Resolved
from kvasir_operator.status.refusals import without_pod_name

GRACE_S: Final = 0
"""The pod writes nothing, so it may end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionWait:
    """Since when (steady clock) a service is held up for the look at one model, and its pod was first seen to run."""

    uid: str
    uri: str
    since: float
    running: float | None = None


class Inspector:
    """Creates pods that look at models, and deletes them."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        recorder: Recorder,
        telemetry: Telemetry,
        workqueue: Workqueue,
        *,
        settings: OperatorSettings,
        clock: Clock,
    ) -> None:
        self._cluster, self._store, self._recorder = cluster, store, recorder
        self._telemetry, self._workqueue = telemetry, workqueue
        self._settings, self._clock = settings, clock
        self._held: dict[Key, InspectionWait] = {}
        self._read: dict[Key, tuple[str, ModelStatus]] = {}

    def known(self, seen: Observed, *, wanted: int) -> Observed:
        """Seen with what is known of its model now: by its status, or by a pod that has just ended."""
        seen, now = self._remembered(seen), self._clock.wall()
        steady, held = self._clock.steady(), self._wait(seen)
        waited_s = steady - held.since if held else 0.0
        ran_s = steady - held.running if held and held.running is not None else 0.0
        found = known_model(seen, wanted=wanted, waited_s=waited_s, ran_s=ran_s, now=now, time=rfc3339(now))
        return replace(seen, model=found)

    async def inspect(self, seen: Observed, resolved: Resolved, service: Json, *, wanted: int) -> str:
        """Why no replica may start yet, empty when one may. seen: before `known`; resolved: with what is known.

        Raises KubeError that a retry may cure.
        """
        before, found, name = self._remembered(seen).model, resolved.observed.model, (seen.namespace, seen.name)
        step = inspection_plan(resolved, self._settings, wanted=wanted, written=found == before, now=self._clock.wall())
        waiting = await self._create(resolved.observed, step, service) or step.waiting
        for pod in step.delete:
            await self._cluster.delete(POD, seen.namespace, pod.name, uid=pod.uid, grace_s=GRACE_S)
            self._telemetry.wrote(POD.kind)
            self._store.drop(POD, (seen.namespace, pod.name), pod.uid)
        self._hold(seen, waiting)
        if found is not None:
            await self._report(before, found, resolved, service)
            if found.facts or found.commit:
                self._read[name] = (seen.uid, found)
        return waiting

    def forget(self, name: Key) -> None:
        """The service is gone."""
        self._held.pop(name, None)
        self._read.pop(name, None)

    def _remembered(self, seen: Observed) -> Observed:
        """Seen with what was read of its model, where it lacks that: a watch may deliver the service as it was before,
        and the pod is gone."""
        uid, read = self._read.get((seen.namespace, seen.name), ("", None))
        if read is None or uid != seen.uid or read.uri != seen.spec.model.uri:
            return seen
        if seen.model is not None and not (read.commit and is_unresolved(seen)):
            return seen
        return replace(seen, model=read)

    def _wait(self, seen: Observed) -> InspectionWait | None:
        """Of this very service and model."""
        held = self._held.get((seen.namespace, seen.name))
        same = held is not None and (held.uid, held.uri) == (seen.uid, seen.spec.model.uri)
        return held if same else None

    def _hold(self, seen: Observed, waiting: str) -> None:
        """Note since when the service waits for the look at its model, or that it does not."""
        name, steady = (seen.namespace, seen.name), self._clock.steady()
        if not waiting:
            self._held.pop(name, None)
            return
        held = self._wait(seen) or InspectionWait(uid=seen.uid, uri=seen.spec.model.uri, since=steady)
        running = (held.running if held.running is not None else steady) if is_running(seen) else None
        self._held[name] = replace(held, running=running)

    async def _create(self, seen: Observed, step: InspectionPlan, service: Json) -> str:
        """Why the pod of a plan was refused, for good and so that the model stays unknown; empty when it was not."""
        if step.create is None:
            return ""
        try:
            self._store.put(POD, await self._cluster.create(POD, step.create))
        except ConflictError:
            # The watch has not delivered it yet, or it has another owner; then the wait ends by its timeout.
            return ""
        except KubeError as error:
            if not error.permanent or seen.model is not None:
                raise
            found = refused(seen, without_pod_name(str(error), "that pod"), rfc3339(self._clock.wall()))
            self._read[seen.namespace, seen.name] = (seen.uid, found)
            self._workqueue.mark((seen.namespace, seen.name))  # resolved again with what is known then
            await self._recorder.event(service, "ForecastUnknown", found.message, kind="Warning")
            return found.message
        self._telemetry.wrote(POD.kind)
        return ""

    async def _report(self, before: ModelStatus | None, found: ModelStatus, resolved: Resolved, service: Json) -> None:
        if before is not None and _same(before, found):
            return
        if is_unresolved(resolved.observed) or not (found.facts or found.message):
            return  # a condition with an event of its own reports it, or nothing was read
        if not found.facts:
            await self._recorder.event(service, "ForecastUnknown", found.message, kind="Warning")
            return
        judged = resolved.placement.forecast
        note = f"{found.architecture}, {found.parameters} parameters"
        await self._recorder.event(service, "ModelInspected", f"{note}; {judged.message}" if judged else note)


def _same(before: ModelStatus, after: ModelStatus) -> bool:
    """Whether both are the same but for the time of the inspection."""
    return before.model_copy(update={"inspected_at": after.inspected_at}) == after
