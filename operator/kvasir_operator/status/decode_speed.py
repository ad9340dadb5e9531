"""Whether replicas decode as fast as their class allows, and the speeds in status.

Each stretch of load is compared with the roofline of just the batches that it computed, so that neither a small batch
nor a long context makes a replica look slow.
"""

from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from kvasir_api.status import two_digits
from kvasir_operator.observed.decode_rate import KEPT, MeanStep
from kvasir_operator.observed.replica import Replica
from kvasir_operator.status.inputs import StatusInputs

RELEASE: Final = 1.25
"""What was slow must be faster than the share by this factor, so that the condition does not come and go."""
STEP_PERCENT: Final = 5
MOST_NAMED: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReplica:
    """A replica that decodes too slowly. how: the numbers, or that there are no new ones."""

    name: str
    how: str


def slow(found: StatusInputs) -> tuple[SlowReplica, ...]:
    """Replicas of the spec's own revision that are too slow, by name; those of others may be on another device."""
    placed = found.resolved.placement
    if placed.roofline is None or not placed.slow_below_percent:
        return ()
    known = found.seen.status.capacity.slow_replicas
    ready = sorted(found.serving, key=lambda r: r.name)
    judged = [_judged(found, r, was=r.name in known) for r in ready if r.revision == (found.asked or found.current)]
    return tuple(one for one in judged if one is not None)


def message(found: StatusInputs, slowed: tuple[SlowReplica, ...], serving: int) -> str:
    """The sentence of the condition."""
    placed = found.resolved.placement
    where = f"AcceleratorClass {placed.choice.name} allows"
    how_many = f"{len(slowed)} of {serving} ready replicas decode"
    said = f"{how_many} slower than {placed.slow_below_percent} percent of what {where}"
    return f"{said}: {slowed[0].name}, {slowed[0].how}"


def measured(found: StatusInputs) -> dict[str, Any]:
    """The speeds in status.capacity; as known before while no replica was under load."""
    latest = [e for r in found.serving if (e := _latest(found, r))]
    before = found.seen.status.capacity
    told: dict[str, Any] = {"slow_replicas": [one.name for one in slow(found)][:MOST_NAMED]}
    if not latest:
        kept = ("stream_tokens_per_second", "batch_tokens_per_second", "decode_percent")
        return {**told, **{name: getattr(before, name) for name in kept}}
    share = median(_percent(found, e) for e in latest)
    known = found.resolved.placement.roofline is not None
    return {
        **told,
        "stream_tokens_per_second": two_digits(median(1 / e.step_s for e in latest)),
        "batch_tokens_per_second": two_digits(median(e.rows / e.step_s for e in latest)),
        "decode_percent": two_digits(STEP_PERCENT * round(share / STEP_PERCENT)) if known else None,
    }


def _judged(found: StatusInputs, r: Replica, *, was: bool) -> SlowReplica | None:
    """Slow after KEPT stretches below the share, until one is clearly above it. Without evidence it stays as it was."""
    rate = found.scaler.decode_rates.get(r.uid)
    evidence = rate.evidence if rate else ()
    if not evidence:
        return SlowReplica(name=r.name, how="as it was when it last had enough to do") if was else None
    shares = [_percent(found, e) for e in evidence]
    floor = found.resolved.placement.slow_below_percent
    still = shares[-1] < min(100.0, floor * RELEASE) if was else False
    falls = len(shares) == KEPT and max(shares) < floor
    return SlowReplica(name=r.name, how=_numbers(found, evidence[-1])) if still or falls else None


def _latest(found: StatusInputs, r: Replica) -> MeanStep | None:
    rate = found.scaler.decode_rates.get(r.uid)
    return rate.evidence[-1] if rate and rate.evidence else None


def _percent(found: StatusInputs, e: MeanStep) -> float:
    """Speed against the roofline; 0 without one."""
    roofline = found.resolved.placement.roofline
    return 100 * roofline.step_s(e.rows, e.kv_tokens) / e.step_s if roofline else 0.0


def _numbers(found: StatusInputs, e: MeanStep) -> str:
    roofline = found.resolved.placement.roofline
    assert roofline is not None
    allowed = 1 / roofline.step_s(e.rows, e.kv_tokens)
    each = f"{two_digits(1 / e.step_s)} tokens/s for each of {two_digits(e.rows)} requests"
    return (
        f"{_percent(found, e):.0f} percent: {each} "
        f"with {two_digits(e.kv_tokens)} tokens of context together, where {two_digits(allowed)} are possible"
    )
