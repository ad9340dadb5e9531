"""What a reconcile reports: the status, events about its changes, and metrics. The only caller of `status.compose`."""

import math
from dataclasses import dataclass
from typing import Final

from kvasir_kube.kinds import Json, Key
from kvasir_operator.loop.clock import Clock, rfc3339
from kvasir_operator.loop.event_emitter import EventEmitter
from kvasir_operator.loop.scaler import Scaler
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.loop.writer import Writer
from kvasir_operator.observed.service import Observed, Revision
from kvasir_operator.stages import Applied, Resolved, RolloutPlan, ScalerResult
from kvasir_operator.status import cost
from kvasir_operator.status.compose import compose, document, pace_s
from kvasir_operator.status.inputs import StatusInputs
from kvasir_operator.status.progress import Progress, overdue, progress

BEHIND_S: Final = 1.0
"""Pause after a status that was refused since the service is another by now: what it is comes by its watch."""


@dataclass(slots=True, kw_only=True)
class ReportMemory:
    """What is kept of one service between reports; losing it costs nothing but a little time."""

    progress: Progress | None = None
    written_at: float = -math.inf


class StatusReporter:
    """`report` is called at the end of each reconcile. gateway_url: for status.address."""

    def __init__(
        self,
        writer: Writer,
        events: EventEmitter,
        scaler: Scaler,
        workqueue: Workqueue,
        telemetry: Telemetry,
        *,
        gateway_url: str,
        clock: Clock,
    ) -> None:
        self._writer, self._events, self._scaler = writer, events, scaler
        self._workqueue, self._telemetry, self._gateway_url, self._clock = workqueue, telemetry, gateway_url, clock
        self._memory: dict[Key, ReportMemory] = {}

    async def report(
        self,
        service: Json,
        resolved: Resolved,
        scaler: ScalerResult,
        plan: RolloutPlan | None,
        applied: Applied,
        *,
        waiting: str,
    ) -> None:
        """plan: None while the spec has a violation or replicas wait. waiting: why they do, empty otherwise."""
        seen, now = resolved.observed, self._clock.steady()
        name = (seen.namespace, seen.name)
        memory = self._memory.setdefault(name, ReportMemory())
        memory.progress = progress(memory.progress, seen, plan, wanted=scaler.wanted, now=now)
        found = StatusInputs(
            resolved=resolved,
            scaler=scaler,
            waiting=waiting,
            plan=plan,
            applied=applied,
            overdue=overdue(memory.progress, seen, now),
            now=rfc3339(self._clock.wall()),
            gateway_url=self._gateway_url,
        )
        status, answer = compose(found)
        self._telemetry.replicas(name, wanted=found.wanted, ready=status.ready_replicas)
        self._telemetry.cost(
            name, price_per_hour=cost.price_per_hour(found), tokens_per_price=cost.tokens_per_price_unit(found)
        )
        left_s = seen.spec.rollout.progress_deadline_seconds - (now - memory.progress.since)
        self._attend(name, found, settled=answer.reason in ("AllReplicasReady", "ScaledToZero"), deadline_s=left_s)
        before, after = document(seen.status), document(status)
        if before != after:
            if (left_s := pace_s(before, after) - (now - memory.written_at)) > 0:
                self._workqueue.mark(name, left_s)
            elif await self._writer.status(service, after):
                memory.written_at = now
                self._workqueue.mark(name)  # what follows from it, such as the next step of a rollout
            else:
                self._workqueue.mark(name, BEHIND_S)
                return  # without events, which each try would repeat
        await self._events.changes(seen, service, status, answer)

    async def revision(self, seen: Observed, service: Json, asked: Revision) -> None:
        """Called when the children of the revision that the spec describes are written."""
        await self._events.revision(seen, service, asked)

    def forget(self, name: Key) -> None:
        """The service is gone."""
        self._memory.pop(name, None)
        self._events.forget(name)

    def _attend(self, name: Key, found: StatusInputs, *, settled: bool, deadline_s: float) -> None:
        """Reconcile at every tick while time alone may change something: a drain, a deadline, a loading model. One that
        may have no pod, as by a quota, waits for a change or for its deadline."""
        seen, attention = found.seen, self._scaler.attention
        leaving = any(r.phase == "draining" for r in seen.replicas) or bool(seen.quarantined or seen.left_behind)
        moving = (seen.replicas or seen.inspections or found.waiting) and not found.applied.foreign
        if found.resolved.violation is not None or not (leaving or (moving and not settled)):
            attention.discard(name)
            if not settled and deadline_s > 0:
                self._workqueue.mark(name, deadline_s, news=False)
        else:
            attention.add(name)
