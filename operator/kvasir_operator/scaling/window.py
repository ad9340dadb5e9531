"""Readings of a service's pods and gateways over the last minutes, one sample per tick; older ones are joined.

Counters become differences here, so that a restarted pod counts from zero and a removed one counts no more. What was
counted over a gap enters a tick at the gap's mean rate. A pod that is ready and silent is named as missing; it is never
read as zero, and its last load counts only as far as the load of the others has not risen since. A reading that
contradicts itself is treated as silence.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import add, attrgetter
from typing import Final, NamedTuple

from msgspec import Struct

from kvasir_api.state import RuntimeState, ServiceDemand, restarted
from kvasir_operator.scaling import gateway_counters, last_known
from kvasir_operator.scaling.balance import imbalance
from kvasir_operator.scaling.capacity import UNKNOWN, ReplicaCapacity, alike, capacity_of, of_next
from kvasir_operator.scaling.gateway_counters import GatewayReading, QueueCounts
from kvasir_operator.scaling.last_known import LastKnown
from kvasir_operator.scaling.load_counts import LoadCounts, added, total
from kvasir_operator.scaling.past_load import PastLoad, Stretch
from kvasir_operator.scaling.plausibility import (
    LATE_S,
    MOST_REQUESTS_PER_S,
    MOST_STEPS_PER_S,
    contradiction,
    leap,
)
from kvasir_operator.scaling.step_model import StepModel

KEPT_S: Final = 600.0
RECENT_S: Final = 60.0
"""So long every tick keeps its own sample; what was counted before is in `past`."""
LOST_S: Final = 120.0
"""A ready pod that was silent for so long is lost: it holds nothing back, and nothing is expected of it."""

LEAST_STEP_S: Final = 1e-6
"""Counters that grow by more steps or seconds than there can be are counted no further than that tick: the model
forgets within hours only."""


class ScaledReplica(Struct, frozen=True, kw_only=True):
    """A replica that takes requests or finishes them. reading: its last document; fresh: within the last few
    seconds. current: of the revision that the next replica will have. prefill: it computes prompts for the others."""

    uid: str
    name: str
    serving: bool = True
    reading: RuntimeState | None = None
    fresh: bool = True
    current: bool = True
    prefill: bool = False


class LoadGauges(NamedTuple):
    """The load at one moment, summed over serving replicas but those that compute prompts for the others: what they do
    is of requests that wait at these. waiting: without those, which wait for no place; waiting_tokens: with theirs."""

    pinned_tokens: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    waiting_tokens: float = 0.0


NO_LOAD: Final = LoadGauges()


class LoadSample(NamedTuple):
    """One tick, or several joined ones. at: seconds of a steady clock, of the last tick.

    serving: replicas that take requests; fresh: those of them that were read now. supply: capacity of each that was
    read; typical: of the next one. held, held_bytes: requests at gateways. missing: pods and gateways that were silent
    lately; lost: pods that have been silent for LOST_S; contradictions: pods whose readings cannot be true, with the
    reason. prefill: serving replicas that compute prompts for the others. imbalance: by how much of its capacity the
    busiest replica is fuller than the others on the mean, 0..1.
    """

    at: float
    serving: int = 0
    fresh: int = 0
    supply: tuple[ReplicaCapacity, ...] = ()
    typical: ReplicaCapacity = UNKNOWN
    gauges: LoadGauges = NO_LOAD
    held: int = 0
    held_bytes: int = 0
    counts: LoadCounts = LoadCounts()
    missing: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    contradictions: tuple[tuple[str, str], ...] = ()
    prefill: int = 0
    imbalance: float = 0.0
    busiest: str = ""


class ReplicaLoad(NamedTuple):
    """The last good reading of one replica, and when it was taken. read: False before the first one."""

    at: float
    reading: RuntimeState = RuntimeState()
    read: bool = True


class LoadWindow(Struct, frozen=True, kw_only=True):
    """samples: of the last minute, one for each tick, from the oldest to the newest. past: counts of the minutes
    before. records: the last good reading of each replica by uid. gateways: that of each gateway by name.

    complete: the load when no replica was silent last; None before such a tick. step: what is known of steps. known:
    what counts while there is no replica.
    """

    samples: tuple[LoadSample, ...] = ()
    past: PastLoad = PastLoad()
    records: Mapping[str, ReplicaLoad] = {}
    gateways: Mapping[str, GatewayReading] = {}
    complete: LoadGauges | None = None
    step: StepModel = StepModel()
    known: LastKnown = LastKnown()

    @property
    def last(self) -> LoadSample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None

    @property
    def stretches(self) -> tuple[Stretch | LoadSample, ...]:
        """Everything that was counted, from the oldest to the newest."""
        return (*self.past.stretches, *self.samples)

    def since(self, at: float) -> tuple[LoadSample, ...]:
        """Samples taken after that time, which is not longer than RECENT_S ago."""
        return self.samples[bisect_right(self.samples, at, key=_AT) :]


_AT: Final = attrgetter("at")
EMPTY = LoadWindow()
FIRST: Final = LoadSample(at=0.0)


def extended(
    window: LoadWindow,
    members: Sequence[ScaledReplica],
    gateways: Iterable[ServiceDemand],
    *,
    missing_gateways: Sequence[str] = (),
    expected: ReplicaCapacity = UNKNOWN,
    now: float,
) -> LoadWindow:
    """The window with one more sample and without those older than KEPT_S. expected: the capacity of the next replica,
    where none like it was read. now: seconds of a steady clock."""
    asked = tuple(gateways)
    demands, lying = gateway_counters.believed(window.gateways, asked, now=now)
    heard = gateway_counters.readings(window.gateways, asked, silent=missing_gateways, now=now)
    wrong = {m.uid: (m.name, said) for m in members if (said := _contradiction(window, m, now))}
    fresh = {m.uid: m.reading for m in members if m.fresh and m.reading is not None and m.uid not in wrong}
    serving = [m for m in members if m.serving]
    records = _records(window, members, fresh, now)
    lost = {m.uid for m in serving if now - records[m.uid].at > LOST_S}
    silent = [m for m in serving if m.uid not in fresh and m.uid not in lost]
    read = [m for m in serving if m.uid not in lost and records[m.uid].read]
    now_read = {m.name: fresh[m.uid] for m in serving if m.uid in fresh and not m.prefill}
    gauges = _with_silent(now_read.values(), [records[m.uid] for m in silent if not m.prefill], window.complete)
    span_s = now - window.samples[-1].at if window.samples else 0.0
    supply = alike([capacity_of(records[m.uid].reading) for m in read])
    typical = of_next(supply, tuple(m.current for m in read), expected)
    counts = _counts(window.records, fresh, gauges, span_s=span_s, now=now)
    uneven, busiest = imbalance(now_read)
    past, leaving = _past(window, now)
    known = last_known.with_past(window.known, leaving)
    queue = gateway_counters.counted(window.gateways, heard, demands, span_s=span_s)
    known, counts = _known(window, known, counts, typical if supply else expected, fresh, demands, queue, now=now)
    last = window.last or FIRST
    sample = LoadSample(
        at=now,
        serving=len(serving),
        fresh=sum(m.uid in fresh for m in serving),
        # A window is kept for each service, and most of what a tick reads is what the tick before has read.
        supply=last.supply if supply == last.supply else supply,
        typical=last.typical if typical == last.typical else typical,
        gauges=last.gauges if gauges == last.gauges else gauges,
        held=sum(d.held for d in demands),
        held_bytes=sum(d.held_bytes for d in demands),
        counts=counts,
        missing=(*sorted(m.name for m in silent), *missing_gateways, *(name for name, _ in lying)),
        lost=tuple(sorted(m.name for m in serving if m.uid in lost)),
        contradictions=(*sorted(wrong.values()), *lying),
        prefill=sum(m.prefill for m in serving),
        imbalance=uneven,
        busiest=busiest,
    )
    return LoadWindow(
        samples=(*window.since(now - RECENT_S), sample),
        past=past,
        records=records,
        gateways=heard,
        complete=window.complete if silent else gauges,
        step=_step(window, fresh, span_s, now),
        known=known,
    )


def _contradiction(window: LoadWindow, m: ScaledReplica, now: float) -> str:
    """What in a replica's new reading cannot be true, by itself or beside the one before; empty for an old reading."""
    if m.reading is None or not m.fresh:
        return ""
    known = window.records.get(m.uid)
    if known is None or not known.read:
        return contradiction(m.reading)
    return contradiction(m.reading) or leap(known.reading, m.reading, now - known.at)


def _past(window: LoadWindow, now: float) -> tuple[PastLoad, tuple[LoadCounts, ...]]:
    """With the samples that are older than RECENT_S by now; without what is older than KEPT_S, which comes second."""
    older = window.samples[: len(window.samples) - len(window.since(now - RECENT_S))]
    past = window.past.extended(Stretch(sample.at, sample.counts) for sample in older)
    return past.since(now - KEPT_S), past.until(now - KEPT_S)


def _known(
    window: LoadWindow,
    known: LastKnown,
    counts: LoadCounts,
    capacity: ReplicaCapacity,
    fresh: Mapping[str, RuntimeState],
    demands: Sequence[ServiceDemand],
    queue: QueueCounts,
    *,
    now: float,
) -> tuple[LastKnown, LoadCounts]:
    """What counts while there is no replica, and the counts of this tick with what gateways had held of them, or hold
    because all replicas are busy: that came now, and counts no more when a replica gets it. With what they refused."""
    arrivals = counts.arrivals + max(0.0, counts.refused)
    known = last_known.with_requests(known, fresh.values(), demands, arrivals=arrivals, now=now)
    released = (window.last.held if window.last else 0) - sum(d.held for d in demands) - queue.left
    known, taken = last_known.with_release(known, released=released, arrivals=arrivals, now=now)
    if capacity.kv_tokens and capacity != known.capacity:
        known = known._replace(capacity=capacity)
    serves = any(reading.phase == "ready" for reading in fresh.values())
    if serves:
        taken -= max(0.0, -released)
    return known, queue.counted(counts._replace(released=taken), was_counted=serves)


def _records(
    window: LoadWindow, members: Sequence[ScaledReplica], fresh: Mapping[str, RuntimeState], now: float
) -> dict[str, ReplicaLoad]:
    """Of the replicas that there are. One that was never read counts as silent from its first tick on. Counters that
    leapt count on from where they are: a reading is true by itself and silence still lasts since the last good one."""
    found = {}
    for m in members:
        known = window.records.get(m.uid)
        if m.uid in fresh:
            found[m.uid] = ReplicaLoad(at=now, reading=fresh[m.uid])
        elif known is None:
            found[m.uid] = _first(m, now)
        elif m.reading is not None and m.fresh and not contradiction(m.reading):
            found[m.uid] = known._replace(reading=m.reading)
        else:
            found[m.uid] = known
    return found


def _first(m: ScaledReplica, now: float) -> ReplicaLoad:
    if m.reading is not None and not contradiction(m.reading):
        return ReplicaLoad(at=now, reading=m.reading)
    return ReplicaLoad(at=now, read=False)


def _sum(readings: Iterable[RuntimeState]) -> LoadGauges:
    pinned = running = waiting = tokens = 0
    for r in readings:
        pinned, running = pinned + r.kv.pinned_tokens, running + r.running
        waiting += max(0, r.waiting - r.kv_host.handing_over)
        tokens += r.waiting_uncached_tokens
    return LoadGauges(pinned_tokens=pinned, running=running, waiting=waiting, waiting_tokens=tokens)


def _with_silent(
    now_read: Iterable[RuntimeState], last_read: Iterable[ReplicaLoad], complete: LoadGauges | None
) -> LoadGauges:
    """The load with the last load of silent pods, but not above what there was when all were read: load that a silent
    pod no longer has may be at another one by now."""
    read, silent = _sum(now_read), _sum(known.reading for known in last_read)
    if silent == NO_LOAD:
        return read
    if complete is None:
        return LoadGauges._make(map(add, read, silent))
    loads = zip(read, silent, complete, strict=True)
    return LoadGauges._make([max(seen, min(seen + frozen, before)) for seen, frozen, before in loads])


def _counts(
    before: Mapping[str, ReplicaLoad],
    fresh: Mapping[str, RuntimeState],
    gauges: LoadGauges,
    *,
    span_s: float,
    now: float,
) -> LoadCounts:
    found = [LoadCounts(span_s=span_s, running_s=gauges.running * span_s, pinned_s=gauges.pinned_tokens * span_s)]
    for uid, reading in fresh.items():
        known = before.get(uid)
        if known is None or not known.read:
            continue
        if known.reading.totals == reading.totals and known.reading.served == reading.served:
            continue
        gap_s = now - known.at
        if gap_s <= 0:
            continue
        counted = _difference(known.reading, reading, gap_s)
        found.append(counted if gap_s == span_s else added(LoadCounts(), counted, min(1.0, span_s / gap_s)))
    return total(found)


def _difference(before: RuntimeState, after: RuntimeState, gap_s: float) -> LoadCounts:
    """What was counted between two readings, so many seconds apart; all of it when the process restarted. Prompts that
    were computed for other replicas are requests there."""
    begun = RuntimeState() if restarted(before, after) else before
    old, new = begun.totals, after.totals
    came, for_peers = new.arrivals - old.arrivals, after.kv_host.peer_prompts - begun.kv_host.peer_prompts
    expired, for_peers = max(0, after.ttft.expired - begun.ttft.expired), min(came, max(0, for_peers))
    arrivals, own = came - for_peers, 1 - for_peers / came if for_peers else 1.0
    refused = after.served.refused - begun.served.refused
    if refused > MOST_REQUESTS_PER_S * gap_s:
        refused = 0
    refused -= expired + max(0, after.served.retried - begun.served.retried)
    return LoadCounts(
        arrivals=arrivals,
        expired=expired,
        refused=max(-arrivals, refused),  # what was sent again came here: no pod's word hides requests of others
        ended=max(0, new.completions - old.completions + max(0, new.aborts - old.aborts) - for_peers),
        prompt_tokens=own * max(0, new.uncached_prompt_tokens - old.uncached_prompt_tokens),
        output_tokens=max(0, new.generation_tokens - old.generation_tokens - for_peers),
        query_tokens=own * max(0, new.prefix_query_tokens - old.prefix_query_tokens),
        hit_tokens=own * max(0, new.prefix_hit_tokens - old.prefix_hit_tokens),
        preemptions=max(0, new.preemptions - old.preemptions),
        drafted=max(0, new.drafted_tokens - old.drafted_tokens),
        accepted=max(0, new.accepted_tokens - old.accepted_tokens),
    )


def _step(window: LoadWindow, fresh: Mapping[str, RuntimeState], span_s: float, now: float) -> StepModel:
    """The model with the steps of each replica since it was read last; a process that restarted is left out once."""
    model = window.step.faded(span_s if fresh else 0.0)
    for uid, reading in fresh.items():
        known = window.records.get(uid)
        if known is None or not known.read or known.reading.decoded == reading.decoded:
            continue
        if restarted(known.reading, reading):
            continue
        old, new, gap_s = known.reading.decoded.of_all, reading.decoded.of_all, now - known.at
        steps, seconds, rows = (after - before for after, before in zip(new, old, strict=True))
        if 0 < steps <= MOST_STEPS_PER_S * gap_s and _may_be(reading, steps, rows, seconds, gap_s):
            model = model.extended(steps=steps, rows=rows, seconds=seconds)
    return model


def _may_be(reading: RuntimeState, steps: float, rows: float, seconds: float, gap_s: float) -> bool:
    """Whether so many steps, the first of which may have begun before, can have had so many sequences and seconds."""
    in_time = LEAST_STEP_S * steps <= seconds and seconds - seconds / steps <= gap_s + LATE_S
    return in_time and 0 <= rows <= 1 + steps * (reading.max_sequences or rows)  # 1: drafted steps are fractions
