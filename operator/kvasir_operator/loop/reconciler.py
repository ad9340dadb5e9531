"""One service, level-triggered: observe, resolve, plan, apply, report. Each stage is one value; see `stages.py`."""

import logging
from dataclasses import replace
from typing import Final

from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import Json, Key
from kvasir_operator.desired.children import children
from kvasir_operator.desired.model_fetch import fetch_plan, nodes_ahead
from kvasir_operator.desired.resolve import resolve
from kvasir_operator.desired.revision import surplus
from kvasir_operator.desired.validation import CURABLE
from kvasir_operator.diff import diff
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.fleet_turns import FleetTurns
from kvasir_operator.loop.model_fetcher import ModelPods
from kvasir_operator.loop.observer import Observer
from kvasir_operator.loop.quota_waiters import QuotaWaiters
from kvasir_operator.loop.scaler import Scaler
from kvasir_operator.loop.status_reporter import StatusReporter
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.loop.writer import Writer
from kvasir_operator.observed.service import ForeignObject, Observed, Revision
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.rollout.plan import plan
from kvasir_operator.stages import Applied, Resolved, RolloutPlan, ScalerResult
from kvasir_operator.status.refusals import QUOTA_EXCEEDED, refusal

LOG: Final = logging.getLogger(__name__)
FAULT_RETRY_S: Final = 5.0
"""A violation may end without an event of anything that is watched, such as a claim that appears; a name conflict ends
by a change of another service, or of an object that is none of ours."""
FIRST_READINGS_S: Final = 0.5
"""Pause of a new operator between two checks whether all ready pods have been read."""
QUOTA_S: Final = 120.0
FETCH_RETRY_S: Final = 30.0
"""A service waits so long for another one of its namespace that a quota refuses too; not longer, since the quota that
refuses the other one may be a different one, and since time moves its own rollout."""


class Reconciler:
    """`reconcile(key)` is called by one worker per key."""

    def __init__(
        self,
        observer: Observer,
        scaler: Scaler,
        model_pods: ModelPods,
        writer: Writer,
        reporter: StatusReporter,
        workqueue: Workqueue,
        *,
        settings: OperatorSettings,
        clock: Clock,
    ) -> None:
        self._observer, self._scaler = observer, scaler
        self._inspector, self._fetcher = model_pods.inspector, model_pods.fetcher
        self._writer, self._reporter, self._workqueue = writer, reporter, workqueue
        self._settings, self._clock = settings, clock
        self._uids: dict[Key, str] = {}
        self._quotas = QuotaWaiters()
        self._turns = FleetTurns(observer.services, workqueue, most=settings.fleet_max_unavailable, clock=clock)

    async def reconcile(self, name: Key) -> None:
        """Bring one service nearer to what it should be. Raises KubeError to be called again after a pause."""
        service = self._observer.service(name)
        if service is None:
            # Children go by garbage collection; there is nothing of ours to undo.
            self._forget(name)
            return
        uid = str(service["metadata"]["uid"])
        if self._uids.get(name, uid) != uid:
            self._forget(name)  # deleted and made again between two reconciles
        if self._scaler.incomplete(name):
            self._workqueue.mark(name, FIRST_READINGS_S)
            return
        self._uids[name] = uid
        await self._reconcile(name, service)

    def _forget(self, name: Key) -> None:
        self._uids.pop(name, None)
        self._passed(name)
        for part in (self._observer, self._scaler, self._inspector, self._writer, self._reporter, self._turns):
            part.forget(name)

    async def _reconcile(self, name: Key, service: Json) -> None:
        seen = await self._observer.observe(service)
        scaler = self._scaler.result(seen)
        known = self._inspector.known(seen, wanted=scaler.wanted)
        resolved, waiting = self._turns.settled(resolve(known, self._settings, now=self._clock.wall())), ""
        if resolved.violation is None or resolved.violation.reason in CURABLE:
            waiting = await self._inspector.inspect(seen, resolved, service, wanted=scaler.wanted)
        planned: RolloutPlan | None = None
        applied, error = Applied(foreign=seen.foreign), None
        if resolved.revision is not None and not waiting:
            planned = await self._planned(resolved, resolved.revision, scaler)
            if not seen.foreign:
                applied, error = await self._applied(resolved, resolved.revision, planned, service)
        if (refused := await self._fetch_models(resolved)) is not None and error is None and not _serves(seen):
            applied, error = _refused(refused, applied.foreign), refused
        if resolved.revision is None or seen.name_conflicts or applied.foreign:
            self._workqueue.mark(name, FAULT_RETRY_S)
        await self._reporter.report(service, resolved, scaler, planned, applied, waiting=waiting)
        if applied.refused_reason != QUOTA_EXCEEDED:
            self._passed(name)
        elif not self._quotas.refused(name):
            self._workqueue.pause(name, QUOTA_S)
            return
        if error is not None:
            raise error

    def _passed(self, name: Key) -> None:
        """No quota refuses anything of the service: there may be room for the next one."""
        if (waiting := self._quotas.passed(name)) is not None:
            self._workqueue.mark(waiting)

    async def _planned(self, resolved: Resolved, revision: Revision, scaler: ScalerResult) -> RolloutPlan:
        """The third stage. While objects of others are in the way, nodes need not be read: nothing is applied."""
        seen = resolved.observed
        if not seen.foreign:
            seen = await self._observer.with_nodes(seen, wanted=scaler.wanted)
        return plan(seen, revision.id, wanted=scaler.wanted, prefill=scaler.prefill, now=self._clock.wall())

    async def _applied(
        self, resolved: Resolved, asked: Revision, planned: RolloutPlan, service: Json
    ) -> tuple[Applied, KubeError | None]:
        """The fourth stage. What the API server refuses goes into the status and is tried again."""
        seen = resolved.observed
        current = asked if planned.target.revision == asked.id else seen.revision(planned.target.revision) or asked
        wanted = children(await self._observer.with_domains(seen), current, planned.counts, self._settings)
        writes = diff(seen, wanted, surplus(seen, {asked.id, current.id}))
        foreign: tuple[ForeignObject, ...] = ()
        try:
            written = await self._writer.children(seen, service, writes)
            foreign = written.foreign
            if written.changed and not foreign:
                self._workqueue.mark((seen.namespace, seen.name))
            await self._reporter.revision(seen, service, asked)
            await self._writer.publish_keys(seen)
            for action in planned.actions:
                await self._writer.act(seen, service, action)
        except KubeError as error:
            return _refused(error, foreign), error
        return Applied(foreign=foreign), None

    async def _fetch_models(self, resolved: Resolved) -> KubeError | None:
        """Into the caches that replicas read, also those of a spec before a broken one or of another option."""
        seen = resolved.observed
        if nodes_ahead(resolved, self._settings):
            resolved = replace(resolved, observed=await self._observer.with_candidates(seen))
        step = fetch_plan(resolved, self._settings, now=self._clock.wall())
        if step.again_s:
            self._workqueue.mark((seen.namespace, seen.name), step.again_s, news=False)
        refused, name = await self._fetcher.apply(seen, step), (seen.namespace, seen.name)
        if refused is not None:
            LOG.warning("service %s/%s: a pod that fetches its model is refused: %s", *name, refused)
            self._workqueue.mark(name, FETCH_RETRY_S)
        return refused


def _serves(seen: Observed) -> bool:
    """Whether some replica is ready: then a further one that lacks its model is no outage."""
    return any(r.live and r.phase == "ready" for r in seen.replicas)


def _refused(error: KubeError, foreign: tuple[ForeignObject, ...]) -> Applied:
    reason = refusal(str(error), status=error.status) if error.status else ""
    return Applied(refused=f"the API server refused: {error}", refused_reason=reason, foreign=foreign)
