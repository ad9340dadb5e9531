"""What one replica can take, and how many replicas a load needs where they are not alike. Called by `window.py` and
`demand.py`; it knows nothing of time."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

from kvasir_api.state import RuntimeState
from kvasir_api.status import Capacity


class ReplicaCapacity(NamedTuple):
    """kv_tokens: of its cache. slots: sequences at once. prefill_tokens_per_s: measured. 0 where it is not known.

    A named tuple, since those of all replicas are compared and hashed several times in each tick.
    """

    kv_tokens: float = 0.0
    slots: float = 0.0
    prefill_tokens_per_s: float = 0.0


UNKNOWN: Final = ReplicaCapacity()


def capacity_of(reading: RuntimeState) -> ReplicaCapacity:
    """The capacity that a replica reports."""
    return ReplicaCapacity(
        kv_tokens=reading.kv.capacity_tokens,
        slots=reading.max_sequences,
        prefill_tokens_per_s=reading.rates.prefill_tokens_per_s,
    )


def alike(supply: Sequence[ReplicaCapacity]) -> tuple[ReplicaCapacity, ...]:
    """The same capacities; where all are equal, which is usual, as one object that is quickly compared."""
    same = bool(supply) and supply.count(supply[0]) == len(supply)
    return (supply[0],) * len(supply) if same else tuple(supply)


def expected(known: Capacity, slots: int, *, measured: bool) -> ReplicaCapacity:
    """The capacity of a replica that is not there yet: as forecast for the present spec and its accelerator class.

    measured: the service has no replica that could be another one, so that what was measured before is better.
    """
    tokens = (known.kv_tokens if measured else None) or known.predicted_kv_tokens
    rate = (known.prefill_tokens_per_second if measured else None) or known.predicted_prefill_tokens_per_second
    return ReplicaCapacity(kv_tokens=tokens or 0, slots=slots if tokens else 0, prefill_tokens_per_s=rate or 0)


def of_next(supply: Sequence[ReplicaCapacity], current: Sequence[bool], expected: ReplicaCapacity) -> ReplicaCapacity:
    """The capacity of the next replica: the median of those of the current revision, which has its class and options.

    Where none of these is read: what is expected of it, or the median of all."""
    like = [c for c, mine in zip(supply, current, strict=True) if mine and c.kv_tokens]
    if supply and not like and expected.kv_tokens:
        like = [expected]
    return ReplicaCapacity(
        kv_tokens=_known_median([c.kv_tokens for c in like or supply]),
        slots=_known_median([c.slots for c in like or supply]),
        prefill_tokens_per_s=_known_median([c.prefill_tokens_per_s for c in like])
        or _known_median([c.prefill_tokens_per_s for c in supply]),
    )


def replicas(
    load: float, supply: Sequence[ReplicaCapacity], typical: ReplicaCapacity, part: Callable[[ReplicaCapacity], float]
) -> float:
    """Replicas that a load needs, as a fraction: the smallest of those that there are first, then such as the next.

    part: which capacity, in the load's unit, with the share of it that may be used. 0 where no capacity is known. The
    smallest come first, since any of them may be the one that leaves.
    """
    each = part(typical)
    if each <= 0 or not load:
        return 0.0
    if supply and supply.count(supply[0]) == len(supply):
        own = each if supply[0] == typical else part(supply[0]) or each
        there = len(supply) * own
        return load / own if load <= there else len(supply) + (load - there) / each
    count, left = 0.0, load
    parts = {c: part(c) or each for c in set(supply)}
    for own in sorted(parts[c] for c in supply):
        if left <= own:
            return count + left / own
        count, left = count + 1, left - own
    return count + left / each


def _known_median(values: Sequence[float]) -> float:
    known = [value for value in values if value > 0]
    if not known:
        return 0.0
    return float(known[0] if known.count(known[0]) == len(known) else median(known))
