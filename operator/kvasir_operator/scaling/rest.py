"""Whether a service rests: a tick would read and decide what the one before did, but for the time that has passed.

Called by `loop/scaler.py` before a tick. What is skipped is made up for by the tick that ends a rest: the autoscaler
sees that nothing happened until then.
"""

from collections.abc import Sequence
from typing import Final

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.state import ServiceDemand, unchanged
from kvasir_operator.scaling.decide import ScalingDecision
from kvasir_operator.scaling.tick import TickInputs
from kvasir_operator.scaling.window import ScaledReplica

REST_S: Final = 60.0
"""After so long a tick comes whatever is read, since windows move by time alone."""
CALM: Final = ("", "floor", "idle")
"""Limits of a decision that time does not change."""


def due(
    looked: TickInputs | None,
    rested: TickInputs | None,
    now: TickInputs,
    *,
    spec: Autoscaling | None,
    decision: ScalingDecision | None,
) -> tuple[TickInputs, ...]:
    """What ticks are to be made of, in this order; nothing while a service rests.

    looked: what the last tick was made of, None where something else than readings has changed since. rested: what was
    read last since, where no tick was made of it. decision: of the last tick.
    """
    if looked is None or not _alike(looked, now):
        return (rested, now) if rested is not None else (now,)
    return () if _settled(spec, decision) and now.at - looked.at < REST_S else (now,)


def rests(
    looked: TickInputs,
    gateways: Sequence[ServiceDemand],
    *,
    at: float,
    spec: Autoscaling | None,
    decision: ScalingDecision | None,
) -> bool:
    """Whether `due` has nothing for what is looked at now, where it is known that replicas, their readings and all else
    but the gateways are the very objects of the last tick: what most services are most of the time."""
    return (
        at - looked.at < REST_S
        and _settled(spec, decision)
        and not (looked.unplaced_s or looked.missing_gateways)
        and _gateways_alike(looked.gateways, gateways)
        and all(_same_pod(pod, pod) for pod in looked.pods)
    )


def _settled(spec: Autoscaling | None, decision: ScalingDecision | None) -> bool:
    """Whether a decision stays while the same is read. Schedules move its bounds by time, and a load is the mean of
    past ticks: while that still needs all replicas, it is time that lets one leave."""
    if spec is None:
        return True
    if decision is None or decision.changed or decision.limited_by not in CALM or spec.schedules:
        return False
    return decision.replicas <= 1 or decision.release.replicas < decision.replicas


def _alike(before: TickInputs, now: TickInputs) -> bool:
    """Whether the same is read as before, of replicas and gateways that answer and have nothing to do."""
    return (
        len(before.pods) == len(now.pods)
        and all(_same_pod(*pair) for pair in zip(before.pods, now.pods, strict=True))
        and _gateways_alike(before.gateways, now.gateways)
        and not (now.missing_gateways or now.unplaced_s or before.unplaced_s)
        and (before.cold_starts_s, before.expected) == (now.cold_starts_s, now.expected)
    )


def _same_pod(before: ScaledReplica, now: ScaledReplica) -> bool:
    if before.reading is None or now.reading is None:
        return False
    if now.reading.running or now.reading.waiting or now.reading.kv.pinned_tokens:
        return False  # a load is the mean of some ticks
    if not (before.fresh and now.fresh):
        return False
    if (before.uid, before.serving, before.current, before.prefill) != (now.uid, now.serving, now.current, now.prefill):
        return False
    return before.reading is now.reading or unchanged(before.reading, now.reading)


def _gateways_alike(before: Sequence[ServiceDemand], now: Sequence[ServiceDemand]) -> bool:
    return len(before) == len(now) and all(map(_idle, before, now))


def _idle(before: ServiceDemand, now: ServiceDemand) -> bool:
    if now.held or now.inflight:
        return False
    return (before.requests, before.refused, before.held) == (now.requests, now.refused, now.held)
