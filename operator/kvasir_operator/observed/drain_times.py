"""For how long replicas have drained, on a clock that never jumps.

An annotation says when a drain began, by the clock of the process that wrote it. It is read once: from then on a steady
clock counts, so that no correction of the wall clock cuts a drain short or prolongs it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from kvasir_operator.observed.replica import Replica


class DrainStart(NamedTuple):
    """since: as the annotation says, epoch seconds. at: the same moment on the steady clock of this process."""

    since: float
    at: float


def followed(
    known: Mapping[str, DrainStart], replicas: Sequence[Replica], *, wall: float, steady: float
) -> dict[str, DrainStart]:
    """By uid, the start of each drain. known: of the last call. A drain from the future begins now."""
    found = {}
    for r in replicas:
        if r.drain_since is None:
            continue
        before = known.get(r.uid)
        if before is None or before.since != r.drain_since:
            before = DrainStart(r.drain_since, steady - max(0.0, wall - r.drain_since))
        found[r.uid] = before
    return found


def measured(starts: Mapping[str, DrainStart], replicas: Sequence[Replica], *, steady: float) -> tuple[Replica, ...]:
    """The replicas with how long they have drained."""
    return tuple(structs.replace(r, draining_s=steady - starts[r.uid].at) if r.uid in starts else r for r in replicas)
