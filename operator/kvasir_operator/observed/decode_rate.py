"""How fast replicas decode, one stretch of load after the other, from the step counters of each tick.

Called by the loop; what is too slow is decided in `status`. A stretch without enough work gives no evidence, so that an
idle replica is neither slow nor fast.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kvasir_api.state import DecodeTotals
from kvasir_operator.observed.replica import Replica

BUSY_FRACTION: Final = 0.25
"""Share of a stretch that must have gone into steps that decode: fewer reflect prompts and pauses between them."""
LEAST_STEPS: Final = 20
"""One step may meet anything; so many have a mean."""
MOST_STRETCHES: Final = 10
"""A stretch that long without enough work starts again: it would mix loads of other hours."""
KEPT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """The mean step of one stretch. rows: its sequences; kv_tokens: their context together."""

    step_s: float
    rows: float
    kv_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRate:
    """Of one replica. since: when the stretch began, on a steady clock. base: what had been decoded then; None until
    the replica has settled, which takes as long as a stretch. evidence: of the last stretches, the newest last."""

    since: float
    base: DecodeTotals | None = None
    evidence: tuple[MeanStep, ...] = ()


def followed(
    before: Mapping[str, DecodeRate], replicas: Iterable[Replica], *, now: float, window_s: float
) -> dict[str, DecodeRate]:
    """By uid, of each replica that is ready or was. now: a steady clock. window_s: length of a stretch."""
    found = {}
    for r in replicas:
        known = before.get(r.uid)
        if r.phase == "ready" and r.reading is not None:
            known = _next(known or DecodeRate(since=now), r.reading.decoded, now=now, window_s=window_s)
        if known is not None:
            found[r.uid] = known
    return found


def _next(rate: DecodeRate, decoded: DecodeTotals, *, now: float, window_s: float) -> DecodeRate:
    if rate.base is not None and decoded.steps < rate.base.steps:
        return DecodeRate(since=now)  # its process restarted
    elapsed = now - rate.since
    if elapsed < window_s:
        return rate
    fresh = replace(rate, since=now, base=decoded)
    if rate.base is None:
        return fresh
    steps, seconds = decoded.steps - rate.base.steps, decoded.seconds - rate.base.seconds
    if steps >= LEAST_STEPS and seconds >= BUSY_FRACTION * window_s:
        mean = MeanStep(
            step_s=seconds / steps,
            rows=(decoded.rows - rate.base.rows) / steps,
            kv_tokens=(decoded.kv_tokens - rate.base.kv_tokens) / steps,
        )
        return replace(fresh, evidence=(*rate.evidence, mean)[-KEPT:])
    return fresh if elapsed >= MOST_STRETCHES * window_s else rate
