"""One service, level-triggered: observe, ask the pure rooms, write the children, write the status."""

import logging
import math
from dataclasses import dataclass, replace
from typing import Final

from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import INFERENCE_SERVICE, Json, Key
from kvasir_operator.desired import fallback
from kvasir_operator.desired.accelerator import choice, forecast, forecasts, speed
from kvasir_operator.desired.children import children
from kvasir_operator.desired.current import current_revision
from kvasir_operator.desired.revision import surplus
from kvasir_operator.desired.validation import TOO_SMALL, violation
from kvasir_operator.diff import diff
from kvasir_operator.loop.clock import Clock, rfc3339
from kvasir_operator.loop.event_emitter import EventEmitter
from kvasir_operator.loop.inspector import Inspector
from kvasir_operator.loop.observer import Observer
from kvasir_operator.loop.scaler import Scaler
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.loop.writer import Writer
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.rollout import quarantine
from kvasir_operator.rollout.plan import plan
from kvasir_operator.rollout.target import rollout_target
from kvasir_operator.status.compose import compose, document, pace_s
from kvasir_operator.status.inputs import StatusInputs
from kvasir_operator.status.progress import Progress, overdue, progress
from kvasir_operator.status.refusals import refusal

LOG: Final = logging.getLogger(__name__)
FAULT_RETRY_S: Final = 5.0
"""A fault may be cured by something that nobody tells us of, such as a claim that appears."""

FIRST_WORDS_S: Final = 0.5
"""A new operator looks this often whether pods have said what the one before knew of them."""


@dataclass(slots=True, kw_only=True)
class ReconcileMemory:
    """What is kept of one service between reconciles; losing it costs nothing but a little time."""

    uid: str
    progress: Progress | None = None
    written_at: float = -math.inf


class Reconciler:
    """`reconcile(key)` is called by one worker per key."""

    def __init__(
        self,
        store: Store,
        observer: Observer,
        scaler: Scaler,
        inspector: Inspector,
        writer: Writer,
        events: EventEmitter,
        workqueue: Workqueue,
        telemetry: Telemetry,
        *,
        settings: OperatorSettings,
        clock: Clock,
    ) -> None:
        self._store, self._observer, self._scaler, self._writer = store, observer, scaler, writer
        self._inspector = inspector
        self._events, self._workqueue, self._telemetry = events, workqueue, telemetry
        self._settings, self._clock = settings, clock
        self._memory: dict[Key, ReconcileMemory] = {}

    async def reconcile(self, name: Key) -> None:
        """Bring one service nearer to what it should be. Raises KubeError to be called again after a pause."""
        service = self._store.get(INFERENCE_SERVICE, name)
        if service is None or service["metadata"].get("deletionTimestamp"):
            # Children go by garbage collection; there is nothing of ours to undo.
            self._forget(name)
            return
        if name in self._memory and self._memory[name].uid != service["metadata"]["uid"]:
            self._forget(name)  # deleted and made again, before anybody looked
        if self._scaler.incomplete(name):
            self._workqueue.mark(name, FIRST_WORDS_S)
            return
        started = self._clock.steady()
        try:
            await self._reconcile(name, service)
        except BaseException:
            self._telemetry.reconciled("error", self._clock.steady() - started)
            raise
        self._telemetry.reconciled("ok", self._clock.steady() - started)

    def _forget(self, name: Key) -> None:
        self._memory.pop(name, None)
        for part in (self._scaler, self._inspector, self._writer, self._events):
            part.forget(name)

    async def _reconcile(self, name: Key, service: Json) -> None:
        seen = await self._observer.observe(service)
        memory = self._memory.setdefault(name, ReconcileMemory(uid=seen.uid))
        found = self._found(name, seen)
        refused: KubeError | None = None
        broken = violation(seen, self._settings)
        if broken is None or broken.reason == TOO_SMALL:
            seen, waiting = await self._inspector.inspect(seen, service, wanted=found.wanted)
            found = replace(found, seen=seen, waiting=waiting)
            broken = violation(seen, self._settings)
        possible, share = speed(seen)
        found = replace(found, forecast=forecast(seen), forecasts=forecasts(seen))
        found = replace(
            found, roofline=possible, slow_below_percent=share, decode_rates=self._scaler.decode_rates(name)
        )
        if broken:
            found = replace(found, fault_reason=broken.reason, fault_message=broken.message)
            self._workqueue.mark(name, FAULT_RETRY_S)
        elif not found.waiting:
            found, refused = await self._bring_children(found, service)
        await self._conclude(name, service, found, memory)
        if refused is not None:
            raise refused

    def _found(self, name: Key, seen: Observed) -> StatusInputs:
        """What is known before the children are looked at. A spec that cannot be read leaves the numbers as they
        were."""
        unread, service = bool(seen.invalid), (name, seen.uid, seen.spec, seen.status)
        return StatusInputs(
            seen=seen,
            now=rfc3339(self._clock.wall()),
            wanted=seen.status.desired_replicas if unread else self._scaler.wanted(*service),
            blocked=seen.foreign,
            missing=self._scaler.missing(name),
            autoscaling=seen.status.autoscaling if unread else self._scaler.status(*service),
            gateway_url=self._settings.gateway_url,
            unavailable_classes=fallback.passed(seen),
            pod_hash=fallback.asked(seen),
        )

    async def _bring_children(self, found: StatusInputs, service: Json) -> tuple[StatusInputs, KubeError | None]:
        """Write what the children lack. What the API server refuses goes into the status and is tried again."""
        seen = found.seen
        current = current_revision(seen, self._settings)
        chosen = choice(seen)
        head = rollout_target(seen, current=current.id, wanted=found.wanted, now=self._clock.wall())
        target = current if head.revision == current.id else seen.revision(head.revision) or current
        full = fallback.passed_now(
            seen, revision=current.id, name=chosen.name, considered=chosen.considered, now=self._clock.wall()
        )
        found = replace(found, current=target.id, asked=current.id, rollout=head, accelerator_class=chosen.name)
        found = replace(found, unavailable_classes=full, revision=current)
        if found.blocked:
            return found, None
        marked = await self._observer.with_nodes(seen, wanted=found.wanted)
        planned = plan(marked, target=head, wanted=found.wanted, now=self._clock.wall())
        wanted = children(seen, target, planned.counts, self._settings)
        writes = diff(seen, wanted, surplus(seen, {current.id, target.id}))
        try:
            found = replace(found, blocked=await self._writer.children(seen, service, writes))
            await self._events.revision(seen, service, current)
            for action in (*planned.actions, *quarantine.actions(seen, wanted=found.wanted, now=self._clock.wall())):
                await self._writer.act(seen, service, action)
        except KubeError as error:
            reason = refusal(str(error), status=error.status) if error.status else ""
            return replace(found, trouble=f"the API server refused: {error}", trouble_reason=reason), error
        return found, None

    async def _conclude(self, name: Key, service: Json, found: StatusInputs, memory: ReconcileMemory) -> None:
        """Status and events from what was found."""
        seen, now = found.seen, self._clock.steady()
        memory.progress = progress(memory.progress, found, now)
        found = replace(found, overdue=overdue(memory.progress, found, now))
        status, answer = compose(found)
        self._telemetry.replicas(name, wanted=found.wanted, ready=status.ready_replicas)
        self._attend(name, found, settled=answer.reason in ("AllReplicasReady", "ScaledToZero"))
        await self._events.changes(seen, service, status, answer)
        before, after = document(seen.status), document(status)
        if before == after:
            return
        if (left_s := pace_s(before, after) - (now - memory.written_at)) > 0:
            self._workqueue.mark(name, left_s)
            return
        await self._writer.status(service, after)
        memory.written_at = now

    def _attend(self, name: Key, found: StatusInputs, *, settled: bool) -> None:
        """Ask for a look at every tick while time alone may change something: a drain, a deadline, a loading model."""
        leaving = any(r.phase == "draining" for r in found.seen.replicas) or bool(found.seen.quarantined)
        if (settled and not leaving) or found.fault_reason:
            self._scaler.attention.discard(name)
        else:
            self._scaler.attention.add(name)
