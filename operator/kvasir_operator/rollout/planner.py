"""The next replica counts of a rollout. Stateless: progress is derived from what is observed, so any step may be lost.

Never takes a ready replica away unless the ones that stay make up the wanted number, and never asks for more than
`wanted + max_surge` replicas in all revisions together.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The replicas of one revision. count: asked of its workload. ready: take requests now. lost: fail or find no
    node."""

    revision: str
    count: int = 0
    ready: int = 0
    lost: int = 0


def next_counts(current: Group, old: Sequence[Group], *, wanted: int, max_surge: int) -> dict[str, int]:
    """Counts to aim for now, by revision. old: from the oldest to the newest; max_surge: at least 1.

    A lower count than asked now means that so many replicas may begin to leave; they are drained before it is applied.
    """
    if not any(group.count for group in old):
        return {current.revision: wanted, **{group.revision: 0 for group in old}}
    room = wanted + (max_surge if wanted else 0) - sum(group.count for group in old)
    count = min(wanted, max(current.count, room))
    still_needed = max(0, wanted - min(current.ready, count))
    return {current.revision: count, **_kept(old, still_needed)}


def _kept(old: Sequence[Group], needed: int) -> dict[str, int]:
    """Old replicas that stay: ready ones first, of the newest revision first; lost ones never."""
    kept = {group.revision: 0 for group in old}
    for ready in (True, False):
        for group in reversed(old):
            have = group.ready if ready else max(0, group.count - group.lost - group.ready)
            taken = min(have, needed)
            kept[group.revision] += taken
            needed -= taken
    return kept
