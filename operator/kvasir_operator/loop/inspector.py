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
from kvasir_operator.desired.inspection import InspectionPlan, inspection_plan, refused
from kvasir_operator.desired.resolve import resolve
from kvasir_operator.loop.clock import Clock, rfc3339
from kvasir_operator.loop.recorder import Recorder
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import Resolved
from kvasir_operator.status.refusals import without_pod_name

GRACE_S: Final = 0
"""The pod writes nothing, so it may end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectionWait:
    """Since when (steady clock) a service is held up for the look at one model."""

    uid: str
    uri: str
    since: float


class Inspector:
    """The only one that creates pods and deletes those that it created."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        recorder: Recorder,
        telemetry: Telemetry,
        *,
        settings: OperatorSettings,
        clock: Clock,
    ) -> None:
        self._cluster, self._store, self._recorder = cluster, store, recorder
        self._telemetry, self._settings, self._clock = telemetry, settings, clock
        self._held: dict[Key, InspectionWait] = {}
        self._read: dict[Key, tuple[str, ModelStatus]] = {}

    async def inspect(self, resolved: Resolved, service: Json, *, wanted: int) -> tuple[Resolved, str]:
        """Resolved, again where the model has just been read, and why no replica may start yet, empty when one may.

        Raises KubeError that a retry may cure.
        """
        resolved = self._with_facts(resolved)
        seen = resolved.observed
        time = rfc3339(self._clock.wall())
        step = inspection_plan(
            resolved, self._settings, wanted=wanted, waited_s=self._waited(seen), now=self._clock.wall(), time=time
        )
        step = await self._create(seen, step, time)
        for pod in step.delete:
            await self._cluster.delete(POD, seen.namespace, pod.name, uid=pod.uid, grace_s=GRACE_S)
            self._telemetry.wrote(POD.kind)
            self._store.drop(POD, (seen.namespace, pod.name), pod.uid)
        if not step.waiting:
            self._held.pop((seen.namespace, seen.name), None)
        if step.found != seen.model:
            resolved = resolve(replace(seen, model=step.found), self._settings, now=self._clock.wall())
            await self._report(seen.model, resolved, service)
        if step.found is not None and step.found.facts:
            self._read[seen.namespace, seen.name] = (seen.uid, step.found)
        return resolved, step.waiting

    def forget(self, name: Key) -> None:
        """The service is gone."""
        self._held.pop(name, None)
        self._read.pop(name, None)

    def _with_facts(self, resolved: Resolved) -> Resolved:
        """Resolved, again where the service lacks what was read of its model: a watch may deliver it as it was before,
        and the pod is gone."""
        seen = resolved.observed
        uid, read = self._read.get((seen.namespace, seen.name), ("", None))
        if seen.model is not None or read is None or uid != seen.uid or read.uri != seen.spec.model.uri:
            return resolved
        return resolve(replace(seen, model=read), self._settings, now=self._clock.wall())

    def _waited(self, seen: Observed) -> float:
        name, now = (seen.namespace, seen.name), self._clock.steady()
        held = self._held.get(name)
        if held is None or (held.uid, held.uri) != (seen.uid, seen.spec.model.uri):
            held = self._held[name] = InspectionWait(uid=seen.uid, uri=seen.spec.model.uri, since=now)
        return now - held.since

    async def _create(self, seen: Observed, step: InspectionPlan, time: str) -> InspectionPlan:
        if step.create is None:
            return step
        try:
            self._store.put(POD, await self._cluster.create(POD, step.create))
        except ConflictError:
            # The watch has not delivered it yet, or it has another owner; then the wait ends by its timeout.
            return step
        except KubeError as error:
            if not error.permanent or step.found is not None:
                raise
            return InspectionPlan(
                found=refused(seen, without_pod_name(str(error), "that pod"), time), delete=step.delete
            )
        self._telemetry.wrote(POD.kind)
        return step

    async def _report(self, before: ModelStatus | None, resolved: Resolved, service: Json) -> None:
        found = resolved.observed.model
        if found is None or (before is not None and _same(before, found)):
            return
        if not found.facts:
            await self._recorder.event(service, "ForecastUnknown", found.message, kind="Warning")
            return
        judged = resolved.placement.forecast
        note = f"{found.architecture}, {found.parameters} parameters"
        await self._recorder.event(service, "ModelInspected", f"{note}; {judged.message}" if judged else note)


def _same(before: ModelStatus, after: ModelStatus) -> bool:
    """Whether both are the same but for the time of the inspection."""
    return before.model_copy(update={"inspected_at": after.inspected_at}) == after
