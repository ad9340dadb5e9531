"""Whether a surge finds an accelerator beside the old replicas, and what it does without one. Called by `target.py`.

Without one old replicas leave first, as in place, until there is room again. That is done without being asked, so it
is done with care: at most maxUnavailable of them, never the last one, and only where what leaves is what is missing.
"""

from typing import Final

from kvasir_kube.kinds import Json
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import Observed, Revision
from kvasir_operator.rollout.counts import RolloutBounds, least
from kvasir_operator.stages import RolloutStrategy

NO_DEVICE: Final = "cannot allocate all claims"
"""The scheduler's words where dynamic resource allocation finds no device."""
ORDINARY: Final = frozenset({"cpu", "memory"})


def replacement_strategy(
    seen: Observed, *, asked: str, target: str, wanted: int, now: float
) -> tuple[RolloutStrategy, str]:
    """How replicas of target take the place of others now, and why not as the spec says, or why not at all.

    asked: the revision of the spec. wanted: replicas of the service. now: epoch seconds.
    """
    rules = seen.spec.rollout
    if rules.strategy != "Surge" or not rules.in_place_after_seconds or not _scarce(seen, asked, target, wanted, now):
        return rules.strategy, ""
    why = "no accelerator can be spared for a new replica"
    bounds = RolloutBounds(strategy="Surge", max_unavailable=rules.max_unavailable, yields=True)
    if least(wanted, bounds) < wanted:
        return "InPlace", f"{why}: old ones leave first, at most {rules.max_unavailable} at a time"
    if not rules.max_unavailable:
        return "Surge", f"{why}, and spec.rollout.maxUnavailable 0 keeps the old ones: raise it, or free an accelerator"
    return "Surge", f"{why}, and the last one that serves stays; spec.rollout.strategy InPlace would interrupt it"


def _scarce(seen: Observed, asked: str, target: str, wanted: int, now: float) -> bool:
    """Whether there are no more accelerators than the service holds, as far as its own pods show."""
    if sum(r.live and r.assigned for r in seen.replicas) > wanted:
        return False
    before = seen.status.rollout
    if before.strategy == "InPlace" and before.current_revision == asked:
        return True  # between two of its steps no pod need be waiting
    wait_s = seen.spec.rollout.in_place_after_seconds
    return any(now - r.created >= wait_s for r in seen.of(target) if _lacks_device(seen, r))


def _lacks_device(seen: Observed, r: Replica) -> bool:
    """Whether the scheduler has no node for this one since all accelerators are taken, and such as old ones hold."""
    mine = seen.revision(r.revision)
    if r.phase != "unschedulable" or r.assigned or mine is None:
        return False
    place = _place(mine)
    words = [NO_DEVICE if place["claims"] else "", *(f"Insufficient {name}" for name in place["devices"])]
    if not any(word and word in r.last_words for word in words):
        return False
    held = {other.revision for other in seen.replicas if other.live and other.assigned} - {r.revision}
    return any(_place(old) == place for old in seen.revisions if old.id in held)


def _place(revision: Revision) -> Json:
    """The fields of a pod that determine which nodes and devices it can take."""
    pod = revision.template.get("spec") or {}
    limits = ((pod.get("containers") or [{}])[0].get("resources") or {}).get("limits") or {}
    return {
        "devices": {name: amount for name, amount in limits.items() if name not in ORDINARY},
        "claims": pod.get("resourceClaims") or [],
        "nodes": pod.get("nodeSelector") or {},
    }
