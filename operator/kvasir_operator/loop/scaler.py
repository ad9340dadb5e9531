"""The autoscaler's tick: listen, extend each service's window, decide, remember. It never writes to the cluster but
events.

Its result is read by the reconcile; after a restart it goes on from what status says was wanted.
"""

import asyncio
import logging
from typing import Final

from msgspec import structs

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.service import InferenceServiceSpec
from kvasir_api.status import MOST_REPLICAS, AutoscalingStatus, InferenceServiceStatus
from kvasir_api.status import ScalingChange as Entry
from kvasir_kube.kinds import INFERENCE_SERVICE, Json, Key, key, uid
from kvasir_operator.loop.clock import Clock, rfc3339
from kvasir_operator.loop.introducer import Introducer
from kvasir_operator.loop.reading_log import ReadingLog
from kvasir_operator.loop.recorder import Recorder
from kvasir_operator.loop.scaler_memory import LastRest, Look, ParsedService, ScalerMemory, digest_of_pods
from kvasir_operator.loop.scraper import Scraper
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.loop.workqueue import Workqueue
from kvasir_operator.observed.decode_rate import followed
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed, parsed_spec, parsed_status
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.scaling import sentence
from kvasir_operator.scaling.capacity import expected
from kvasir_operator.scaling.decide import ScalingDecision, ScalingState
from kvasir_operator.scaling.policy import policy
from kvasir_operator.scaling.prefill_replicas import NOTHING, PrefillDecision, kept, prefill_replicas
from kvasir_operator.scaling.pressure import LoadPressure, pressure
from kvasir_operator.scaling.rest import due, rests
from kvasir_operator.scaling.schedule import bounds
from kvasir_operator.scaling.tick import TickInputs, tick
from kvasir_operator.scaling.window import LoadSample
from kvasir_operator.stages import ScalerResult
from kvasir_operator.status.listing import listed

LOG: Final = logging.getLogger(__name__)
KEPT_DECISIONS: Final = 10
MOST_REASON: Final = 1024
BY_HAND: Final = ("Advisory", "External")
"""Modes in which spec.replicas determines the count."""


class Scaler:
    """One loop for all services. attention: services to be reconciled at each tick, since time moves something in
    them."""

    def __init__(
        self,
        store: Store,
        scraper: Scraper,
        introducer: Introducer,
        workqueue: Workqueue,
        recorder: Recorder,
        telemetry: Telemetry,
        *,
        settings: OperatorSettings,
        clock: Clock,
    ) -> None:
        self.attention: set[Key] = set()
        self.ticked_at = clock.steady()
        self._store, self._scraper, self._workqueue, self._recorder = store, scraper, workqueue, recorder
        self._introducer = introducer
        self._telemetry, self._clock, self._interval_s = telemetry, clock, settings.interval_s
        self._speed_window_s, self._log = settings.speed_window_s, ReadingLog(settings.readings_dir)
        self._memory: dict[Key, ScalerMemory] = {}

    async def run(self) -> None:
        """Tick until cancelled, at a steady rate."""
        while True:
            started = self._clock.steady()
            try:
                await self.tick()
            except Exception:
                LOG.exception("a tick failed")
            await asyncio.sleep(max(0.1, self._interval_s - (self._clock.steady() - started)))

    async def tick(self) -> None:
        """Read all pods and gateways, then decide for each service whose pods have all been read once."""
        await self._scraper.scrape()
        services = [key(service) for service in self._store.all(INFERENCE_SERVICE)]
        replicas: dict[Key, tuple[Replica, ...]] = {}
        for gone in set(self._memory) - set(services):
            self.forget(gone)
        for name in services:
            service = self._store.get(INFERENCE_SERVICE, name)  # as it is by now, if it is still there
            if service is None or service["metadata"].get("deletionTimestamp") or self._scraper.incomplete(name):
                continue
            replicas[name] = self._scraper.replicas(name)
            try:
                await self._look(name, service, replicas[name])
            except Exception:
                LOG.exception("a tick of %s failed; the others are decided for", "/".join(name))
        self._introducer.found(
            (uid(service), name := key(service), replicas.get(name) or self._scraper.replicas(name))
            for service in self._store.all(INFERENCE_SERVICE)
        )
        for name in list(self.attention):
            self._workqueue.mark(name, 0.0, news=False)
        self.ticked_at = self._clock.steady()

    def result(self, seen: Observed) -> ScalerResult:
        """What is wanted now, and what the last tick read. A spec that cannot be read leaves the numbers as they
        were."""
        name = (seen.namespace, seen.name)
        service = (name, seen.uid, seen.spec, seen.status)
        wanted = seen.status.desired_replicas if seen.invalid else self._wanted(*service)
        status = seen.status.autoscaling if seen.invalid else self._status(*service)
        memory = self._memory.get(name)
        last = memory.window.last if memory else None
        now = memory.pressure if memory else LoadPressure()
        role = seen.spec.roles.prefill
        prompts = memory.prefill if memory and role else None
        present = sum(r.prefill for r in seen.replicas if r.live)
        rules = memory.decision.policy if memory and memory.decision else None
        return ScalerResult(
            wanted=wanted,
            most=rules.max_replicas if rules else 0,
            most_field=rules.max_field if rules else "",
            status=status,
            missing=last.missing if last else (),
            lost=last.lost if last else (),
            contradictions=last.contradictions if last else (),
            unread=bool(last and last.serving and not last.fresh),
            preempting=bool(now.preemptions),
            exhausted=now.exhausted,
            imbalance=now.imbalance,
            busiest=now.busiest,
            acceptance=now.acceptance,
            decode_rates=memory.decode_rates if memory else {},
            prefill=prompts.replicas if prompts else kept(role, present) if role else 0,
            prefill_why=prompts.why if prompts else "",
        )

    def _wanted(self, name: Key, uid: str, spec: InferenceServiceSpec, status: InferenceServiceStatus) -> int:
        """What was decided last, or spec.replicas without autoscaling."""
        if spec.autoscaling is None or spec.autoscaling.mode in BY_HAND:
            return spec.replicas
        wanted = self._remembered(name, uid, spec, status).state.wanted
        if spec.autoscaling.mode == "Paused":
            return wanted
        least, most = bounds(spec.autoscaling, self._clock.wall())
        return min(max(wanted, least.replicas), most.replicas)

    def _status(
        self, name: Key, uid: str, spec: InferenceServiceSpec, status: InferenceServiceStatus
    ) -> AutoscalingStatus | None:
        """status.autoscaling; None while autoscaling is off."""
        if spec.autoscaling is None:
            return None
        memory = self._remembered(name, uid, spec, status)
        decision = memory.decision
        if decision is None:
            before = status.autoscaling or AutoscalingStatus()
            return before.model_copy(update={"desired_replicas": self._wanted(name, uid, spec, status)})
        return AutoscalingStatus(
            desired_replicas=decision.replicas if memory.mode == "Advisory" else self._wanted(name, uid, spec, status),
            raw_replicas=min(decision.raw, MOST_REPLICAS),
            binding_signal=decision.demand.signal if decision.demand.known else "",
            limited_by=decision.limited_by,
            message=decision.message,
            decisions=memory.decisions,
        )

    def incomplete(self, name: Key) -> bool:
        """Whether to wait for the first words of a pod of the service: soon after the operator's start only."""
        return self._scraper.incomplete(name)

    def forget(self, name: Key) -> None:
        """The service is gone."""
        self._memory.pop(name, None)
        self.attention.discard(name)
        self._telemetry.forget(name)

    async def _look(self, name: Key, service: Json, replicas: tuple[Replica, ...]) -> None:
        memory = self._current(name, service)
        if memory is None or (parsed := memory.parsed) is None:
            return
        before = memory.looked
        if before is not None and self._rests(name, memory, before, parsed, replicas):
            memory.rested = LastRest(self._clock.steady(), self._clock.wall(), self._scraper.demands(name))
            return
        now = self._now(name, before, parsed, replicas)
        alike = before is not None and before.parsed is parsed and before.pods == now.pods
        looked = before.inputs if before is not None and alike else None
        rested = memory.rested.inputs(before.inputs) if memory.rested and before else None
        ticks = due(looked, rested, now.inputs, spec=parsed.autoscaling, decision=memory.decision)
        if not ticks:
            memory.rested = LastRest(now.inputs.at, now.inputs.wall, now.inputs.gateways)
            return
        memory.rested, memory.looked = None, now
        for inputs in ticks:
            await self._tick(name, service, memory, now, inputs)

    def _rests(
        self, name: Key, memory: ScalerMemory, before: Look, parsed: ParsedService, replicas: tuple[Replica, ...]
    ) -> bool:
        """Whether nothing is to be made of what is read, and so nothing to be put together of it. before: what the last
        tick was made of."""
        return (
            before.stands(parsed, replicas)
            and rests(
                before.inputs,
                self._scraper.demands(name),
                at=self._clock.steady(),
                spec=parsed.autoscaling,
                decision=memory.decision,
            )
            and not self._scraper.missing_gateways(name)
        )

    async def _tick(self, name: Key, service: Json, memory: ScalerMemory, looked: Look, inputs: TickInputs) -> None:
        spec, by_hand = looked.parsed.autoscaling, looked.parsed.by_hand
        result = tick(spec, memory.window, memory.state, inputs, by_hand=by_hand)
        begins, before = not memory.window.samples, memory.state
        self._log.write(
            name, memory.uid, spec, before=before, inputs=inputs, by_hand=by_hand, begins=begins, result=result
        )
        decided_before = memory.decision is not None
        memory.window, memory.state, memory.decision = result.window, result.state, result.decision
        memory.prefill = self._prefill(memory, looked.parsed, inputs.at)
        uneven, memory.pressure = memory.pressure.imbalance, pressure(result.window)
        if begins or memory.pressure.imbalance != uneven:
            self._telemetry.imbalance(name, memory.pressure.imbalance)
        believed = _believed(looked.replicas, result.window.last)
        memory.decode_rates = followed(memory.decode_rates, believed, now=inputs.at, window_s=self._speed_window_s)
        if result.decision is not None:
            self._telemetry.decided(name, result.decision)
            await self._tell(name, service, result.decision, memory)
        elif decided_before:
            self._telemetry.forget_decisions(name)
        digest = memory.digest_with(looked.pods)
        if digest != memory.digest:
            memory.digest = digest
            self._workqueue.mark(name, 0.0)

    def _prefill(self, memory: ScalerMemory, parsed: ParsedService, now: float) -> PrefillDecision | None:
        if parsed.prefill is None:
            return None
        rules = policy(parsed.autoscaling or Autoscaling())
        return prefill_replicas(parsed.prefill, memory.window, memory.prefill or NOTHING, rules, now=now)

    def _current(self, name: Key, service: Json) -> ScalerMemory | None:
        """The memory of a service, with what a tick needs of its spec; None while its spec is invalid."""
        memory = self._memory.get(name)
        if memory is not None and memory.parsed is not None and memory.parsed.service is service:
            return memory
        spec, invalid = parsed_spec(service)
        if invalid:
            return None
        status = parsed_status(service)
        memory = self._remembered(name, service["metadata"]["uid"], spec, status)
        memory.parsed = ParsedService(
            service=service,
            autoscaling=spec.autoscaling,
            prefill=spec.roles.prefill,
            by_hand=spec.replicas,
            revision=status.rollout.current_revision,
            cold_start_s=float(status.cold_start.seconds) if status.cold_start is not None else None,
            capacity=status.capacity,
            max_sequences=spec.runtime.max_sequences,
        )
        return memory

    def _now(self, name: Key, before: Look | None, parsed: ParsedService, replicas: tuple[Replica, ...]) -> Look:
        """What a tick reads. before: what the last one was made of, of which is kept what has not changed."""
        if before is None or not before.stands(parsed, replicas):
            inputs = self._inputs(name, replicas, parsed)
            return Look(inputs=inputs, parsed=parsed, replicas=replicas, pods=digest_of_pods(replicas))
        inputs = structs.replace(
            before.inputs,
            at=self._clock.steady(),
            wall=self._clock.wall(),
            gateways=tuple(self._scraper.demands(name)),
            missing_gateways=self._scraper.missing_gateways(name),
        )
        return structs.replace(before, inputs=inputs)

    def _inputs(self, name: Key, replicas: tuple[Replica, ...], parsed: ParsedService) -> TickInputs:
        wall = self._clock.wall()
        # One without a reading may have been unready for hours after its start, which no reading shows.
        ready = [r for r in replicas if r.phase == "ready" and r.reading is not None]
        starts = tuple(at - r.created for r in ready if (at := r.first_ready_at) is not None)
        before = (parsed.cold_start_s,) if parsed.cold_start_s is not None else ()
        waits = [wall - r.created for r in replicas if r.live and r.phase == "unschedulable"]
        return TickInputs(
            at=self._clock.steady(),
            wall=wall,
            pods=tuple(self._scraper.members(replicas, revision=parsed.revision)),
            gateways=tuple(self._scraper.demands(name)),
            missing_gateways=self._scraper.missing_gateways(name),
            unplaced_s=max(waits, default=0.0),
            cold_starts_s=starts or before,
            expected=expected(parsed.capacity, parsed.max_sequences, measured=not replicas),
        )

    async def _tell(self, name: Key, service: Json, decision: ScalingDecision, memory: ScalerMemory) -> None:
        """A change is counted, and becomes an entry of status and one event. In mode External the other autoscaler
        changes the count."""
        if decision.changed and memory.mode != "External":
            self._telemetry.changed(name, decision.signal)
            entry = Entry.model_validate(
                {
                    "time": rfc3339(self._clock.wall()),
                    "from": decision.before,
                    "to": decision.replicas,
                    "signal": decision.signal,
                    "reason": f"{decision.reason} ({decision.arithmetic})"[:MOST_REASON],
                }
            )
            memory.decisions = [entry, *memory.decisions][:KEPT_DECISIONS]
        if decision.changed and memory.mode not in BY_HAND:
            up = decision.replicas > decision.before
            note = f"{decision.before} → {sentence.replicas(decision.replicas)}: {decision.reason}"
            await self._recorder.event(service, "ScaledUp" if up else "ScaledDown", note)
        await self._say_held(service, decision, memory)

    async def _say_held(self, service: Json, decision: ScalingDecision, memory: ScalerMemory) -> None:
        """An event when a removal begins to be held back by silence, not one per tick."""
        last = memory.window.last
        held = decision.limited_by == "readings" and bool(last and last.missing)
        if held and not memory.held and last:
            note = f"{decision.message}; no answer from {listed(last.missing)}"
            await self._recorder.event(service, "ScalingHeld", note, kind="Warning")
        memory.held = held

    def _remembered(
        self, name: Key, uid: str, spec: InferenceServiceSpec, status: InferenceServiceStatus
    ) -> ScalerMemory:
        memory = self._memory.get(name)
        if memory is None or memory.uid != uid:
            state = ScalingState(wanted=_before(spec, status), since=self._clock.steady())
            decisions = list(status.autoscaling.decisions) if spec.autoscaling and status.autoscaling else []
            memory = self._memory[name] = ScalerMemory(uid=uid, state=state, decisions=decisions)
        mode = spec.autoscaling.mode if spec.autoscaling is not None else ""
        if spec.autoscaling is None:
            # Its demand is not watched before it is scaled by it.
            memory.state = ScalingState(wanted=spec.replicas, since=self._clock.steady())
        elif memory.mode in BY_HAND and mode not in BY_HAND:
            memory.state = memory.state._replace(wanted=spec.replicas, changes=())  # that there are, not the advice
        memory.mode = mode
        return memory


def _before(spec: InferenceServiceSpec, status: InferenceServiceStatus) -> int:
    """How many were wanted when this operator came. Of advice, what was advised."""
    if spec.autoscaling is None:
        return spec.replicas
    if spec.autoscaling.mode == "Paused":
        return status.desired_replicas if status.autoscaling is not None else spec.replicas
    advised = status.autoscaling if spec.autoscaling.mode in BY_HAND else None
    # A new service has a replica, so that it is known to start, and idleSeconds begin.
    least = spec.autoscaling.min_replicas or int(status.autoscaling is None)
    return max((advised or status).desired_replicas, least)


def _believed(replicas: tuple[Replica, ...], last: LoadSample | None) -> tuple[Replica, ...]:
    """With readings that cannot be true taken away."""
    if last is None or not last.contradictions:
        return replicas
    wrong = {name for name, _ in last.contradictions}
    return tuple(structs.replace(r, reading=None) if r.name in wrong else r for r in replicas)
