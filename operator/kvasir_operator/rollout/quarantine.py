"""Which pods are quarantined because their device failed, for how long, and when they are restored or deleted.

A pod that is quarantined is no replica any more, so that its workload makes another one at once; but it still holds its
device, so that the scheduler gives it to no other pod. That needs no right over
nodes, changes no other pod, and ends by itself. It is for faults that last or came again; others restart in place.
"""

from collections.abc import Iterator
from typing import Final

from kvasir_api import device_faults
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed
from kvasir_operator.stages import PodAction

MAX_QUARANTINED: Final = 2
"""Of one service: a fault of a driver everywhere must not take every device of a cluster out of use."""
QUARANTINE_S: Final = 1800.0
"""Long enough for an administrator or a repair of the node; then the device is tried again."""
NO_ROOM_S: Final = 120.0
"""A replica that finds no node for so long will find none; what adds nodes to a cluster has had its time."""
REPEATS: Final = 2
"""Restarts after which a fault that a program can cause is blamed on the device."""


def actions(seen: Observed, *, wanted: int, now: float) -> tuple[PodAction, ...]:
    """What to do now. wanted: replicas of the service. now: epoch seconds."""
    held = [r for r in seen.quarantined if r.live]
    given_up = [action for r in held if (action := _end(seen, r, wanted, now)) is not None]
    if not wanted:
        return tuple(given_up)
    return (*given_up, *_begin(seen, MAX_QUARANTINED - len(held), now))


def words(r: Replica) -> str:
    """How the device of a replica failed, by the runtime or else by the kubelet; empty without a failure."""
    return r.device_fault or r.unhealthy_words


def _end(seen: Observed, r: Replica, wanted: int, now: float) -> PodAction | None:
    if not wanted:
        return PodAction(verb="free", replica=r, why="no replica is wanted")
    if _no_room(seen, r.revision, now):
        return PodAction(verb="return", replica=r, why="there is no room for another replica")
    if r.phase == "ready" and any(other.phase != "ready" for other in seen.of(r.revision)):
        return PodAction(verb="return", replica=r, why="it is ready again before another replica")
    if r.phase == "ready":
        return PodAction(verb="free", replica=r, why="its device computes again")
    if r.quarantined_at is None or now - r.quarantined_at >= QUARANTINE_S:
        return PodAction(verb="free", replica=r, why=f"its {QUARANTINE_S:g} s are over")
    return None


def _begin(seen: Observed, room: int, now: float) -> Iterator[PodAction]:
    for r in seen.replicas:
        if room > 0 and _blames(r, now) and not _no_room(seen, r.revision, now, after_s=0.0):
            room -= 1
            yield PodAction(verb="quarantine", replica=r, why=f"on node {r.node}: {words(r)}")


def _blames(r: Replica, now: float) -> bool:
    """Whether the device of a replica is why it does not serve. One that came back is left alone for a while: there was
    no room for another."""
    if not words(r) or not r.live or not r.assigned or r.drained or r.phase in ("ready", "draining"):
        return False
    if r.quarantined_at is not None and now - r.quarantined_at < QUARANTINE_S:
        return False
    return bool(r.unhealthy) or device_faults.is_permanent(r.device_fault) or r.restarts >= REPEATS


def _no_room(seen: Observed, revision: str, now: float, *, after_s: float = NO_ROOM_S) -> bool:
    """Whether a replica of the revision has found no node for so long, or its workload may make none."""
    refused = any(w.failure for w in seen.workloads if w.revision == revision)
    waiting = [r for r in seen.of(revision) if r.phase == "unschedulable" and not r.assigned]
    return refused or any(now - r.created >= after_s for r in waiting)
