"""What the autoscaler's loop keeps of a service between ticks, and which of it makes a reconcile worth while.

Read and written by `scaler.py` alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import NamedTuple

from msgspec import Struct, structs

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.roles import PrefillRole
from kvasir_api.state import ServiceDemand
from kvasir_api.status import Capacity, ScalingChange
from kvasir_kube.kinds import Json
from kvasir_operator.observed.decode_rate import DecodeRate
from kvasir_operator.observed.replica import Replica
from kvasir_operator.scaling.decide import ScalingDecision, ScalingState
from kvasir_operator.scaling.prefill_replicas import PrefillDecision
from kvasir_operator.scaling.pressure import LoadPressure
from kvasir_operator.scaling.tick import TickInputs
from kvasir_operator.scaling.window import EMPTY, LoadSample, LoadWindow


class ParsedService(Struct, frozen=True, kw_only=True):
    """What a tick needs of a service, and the object from which it was parsed: the store keeps that until a newer one
    comes."""

    service: Json
    autoscaling: Autoscaling | None
    prefill: PrefillRole | None = None
    by_hand: int
    revision: str
    cold_start_s: float | None
    capacity: Capacity
    max_sequences: int


class Look(Struct, frozen=True, kw_only=True):
    """What a tick of a service is made of. pods: of the replicas, as digest_of_pods."""

    inputs: TickInputs
    parsed: ParsedService
    replicas: tuple[Replica, ...]
    pods: tuple[object, ...]

    def stands(self, parsed: ParsedService, replicas: tuple[Replica, ...]) -> bool:
        """Whether a later tick reads the same of the replicas: the scraper keeps an object while neither its pod nor
        its reading changes. Time moves what is read of those without a reading, and of those without a node."""
        return (
            self.parsed is parsed
            and len(self.replicas) == len(replicas)
            and all(map(is_, self.replicas, replicas))
            and all(r.reading is not None for r in replicas)
            and not self.inputs.unplaced_s
        )


class LastRest(NamedTuple):
    """What was read of a service in which nothing has changed since its last tick, as far as it differs: the times of
    TickInputs, and what gateways say of the last request."""

    at: float
    wall: float
    gateways: Sequence[ServiceDemand]

    def inputs(self, looked: TickInputs) -> TickInputs:
        """What was read, as a tick is made of it. looked: what the last tick was made of."""
        return structs.replace(looked, at=self.at, wall=self.wall, gateways=tuple(self.gateways))


@dataclass(slots=True, kw_only=True)
class ScalerMemory:
    """uid: whose it is; another service may have come under its name. looked: what the last tick was made of. rested:
    what was read last since, where no tick followed because nothing has changed. prefill: None without such a role."""

    uid: str
    window: LoadWindow = EMPTY
    decode_rates: dict[str, DecodeRate] = field(default_factory=dict)
    state: ScalingState
    decision: ScalingDecision | None = None
    prefill: PrefillDecision | None = None
    pressure: LoadPressure = field(default_factory=LoadPressure)
    decisions: list[ScalingChange] = field(default_factory=list)
    digest: tuple[object, ...] = ()
    held: bool = False
    mode: str = ""
    parsed: ParsedService | None = None
    looked: Look | None = None
    rested: LastRest | None = None

    def digest_with(self, pods: tuple[object, ...]) -> tuple[object, ...]:
        """What of a tick can change something that a reconcile would do or write. pods: as digest_of_pods."""
        decision, last = self.decision, self.window.last
        return (
            pods,
            tuple((uid, rate.evidence) for uid, rate in self.decode_rates.items() if rate.evidence),
            (decision.replicas, decision.raw, decision.demand.signal, decision.limited_by) if decision else None,
            self.prefill.why if self.prefill else None,
            _of_sample(last) if last else None,
            _of_pressure(self.pressure),
        )


def digest_of_pods(replicas: tuple[Replica, ...]) -> tuple[object, ...]:
    """What a reconcile reads of replicas and their readings."""
    return tuple((r.uid, r.phase, _serving(r)) for r in replicas)


def _of_sample(last: LoadSample) -> tuple[object, ...]:
    each = last.typical
    rate, silent = f"{each.prefill_tokens_per_s:.2g}", (last.missing, last.lost, bool(last.fresh))
    return each.kv_tokens, rate, silent, tuple(name for name, _ in last.contradictions)


def _of_pressure(now: LoadPressure) -> tuple[object, ...]:
    return now.exhausted, bool(now.preemptions), round(now.imbalance, 1), round(now.acceptance, 1)


def _serving(r: Replica) -> tuple[str, ...]:
    """The hardware that it reports, and why it accepts no client."""
    return (r.reading.device, r.reading.kernels, r.reading.fallback, r.reading.locked) if r.reading else ()
