"""The next replica counts of a rollout. Stateless: progress is derived from what is observed, so any step may be lost.

What each strategy promises at every step, however many replicas fail meanwhile:
- Surge: no ready replica leaves unless those that stay make up the wanted number; never more than wanted + max_surge.
  A surge that yields, since its new replicas find no place, lets max_unavailable be missing, but never the last one.
- InPlace: at most max_unavailable fewer ready ones than wanted; never more than wanted.
- BlueGreen: as Surge with a surge of all; the old ones leave together, when all new ones are ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Strategy = Literal["Surge", "InPlace", "BlueGreen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionCounts:
    """The replicas of one revision. count: asked of its workload. ready: take requests now. lost: fail or find no
    node."""

    revision: str
    count: int = 0
    ready: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBounds:
    """What a step may do. cap: the current revision grows to no more than this for now, None for no bound; none leaves
    for it. keep: old replicas that stay although they are not needed, so that there is something to compare with.
    yields: with Surge, old replicas leave first."""

    strategy: Strategy = "Surge"
    max_surge: int = 1
    max_unavailable: int = 1
    cap: int | None = None
    keep: int = 0
    yields: bool = False


def next_counts(
    current: RevisionCounts, old: Sequence[RevisionCounts], *, wanted: int, bounds: RolloutBounds
) -> dict[str, int]:
    """Counts to aim for now, by revision. old: from the oldest to the newest.

    A lower count than asked now means that so many replicas may begin to leave; they are drained before it is applied.
    """
    if not any(group.count for group in old):
        return {current.revision: wanted, **{group.revision: 0 for group in old}}
    most = wanted if bounds.cap is None else min(wanted, max(bounds.cap, current.count))
    count = min(most, max(current.count, _ceiling(wanted, bounds) - sum(group.count for group in old)))
    ready = min(current.ready, count)
    needed = max(_needed(ready, most, wanted, bounds), min(bounds.keep, wanted))
    return {current.revision: count, **_kept(old, needed)}


def _ceiling(wanted: int, bounds: RolloutBounds) -> int:
    """Replicas that there may be in all revisions together."""
    surge = {"Surge": bounds.max_surge, "InPlace": 0, "BlueGreen": wanted}[bounds.strategy]
    return wanted + (surge if wanted else 0)


def least(wanted: int, bounds: RolloutBounds) -> int:
    """Ready replicas below which no step goes, if there are so many."""
    if bounds.strategy == "InPlace":
        return max(0, wanted - bounds.max_unavailable)
    return max(min(1, wanted), wanted - bounds.max_unavailable) if bounds.yields else wanted


def _needed(ready: int, most: int, wanted: int, bounds: RolloutBounds) -> int:
    """Old replicas that must stay. ready, most: of the current revision, now and for now."""
    if bounds.strategy == "BlueGreen":
        return wanted if ready < wanted else 0
    # Where the current revision may not grow yet, an old one that left would be missing for nothing.
    return max(least(wanted, bounds) - ready, wanted - most)


def _kept(old: Sequence[RevisionCounts], needed: int) -> dict[str, int]:
    """Old replicas that stay: ready ones first, of the newest revision first; lost ones never."""
    kept = {group.revision: 0 for group in old}
    for ready in (True, False):
        for group in reversed(old):
            have = group.ready if ready else max(0, group.count - group.lost - group.ready)
            taken = min(have, needed)
            kept[group.revision] += taken
            needed -= taken
    return kept
