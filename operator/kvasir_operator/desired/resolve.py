"""What a spec means on this cluster, once per reconcile: class, forecast, violation, pod template and revision.

Called by the loop, with what is known of the model then.
"""

from dataclasses import replace

from kvasir_api.rank_state import MOST_RANKS
from kvasir_operator.desired import fallback, fleet, parallelism, reductions
from kvasir_operator.desired.accelerator import placement
from kvasir_operator.desired.current import current_revision
from kvasir_operator.desired.parallelism import PodLayout
from kvasir_operator.desired.template import rendered
from kvasir_operator.desired.validation import TOO_SMALL, patch_violation, violation
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import Placement, Resolved, Violation


def resolve(seen: Observed, settings: OperatorSettings, *, now: float) -> Resolved:
    """The second stage. now: epoch seconds."""
    seen = parallelism.over_devices(seen)
    hash_ = fallback.pod_hash(seen.spec)
    rungs = reductions.taken(seen, hash_)
    found = _resolved(reductions.reduced(seen, rungs), settings, hash_, now=now)
    while found.violation is not None and found.violation.reason == TOO_SMALL:
        more = reductions.with_next(seen, rungs)
        if more == rungs:
            break
        rungs, found = more, _resolved(reductions.reduced(seen, more), settings, hash_, now=now)
    if found.revision is not None:
        rungs = reductions.taken_now(seen, rungs, revision=(found.held or found.revision).id, now=now)
    left = reductions.left(seen, rungs)
    return replace(found, reductions=rungs, reductions_left=left, observed=parallelism.laid_out(seen, found.nodes))


def _resolved(seen: Observed, settings: OperatorSettings, hash_: str, *, now: float) -> Resolved:
    if why := parallelism.obstacle(seen):
        return _refused(seen, placement(seen, hash_), Violation(reason="InvalidSpec", message=f"spec.{why}"))
    chosen = parallelism.layout(seen, hash_)
    if chosen is None:
        return _placed(seen, settings, hash_, now=now)
    found = _placed(parallelism.laid_out(seen, chosen.nodes), settings, hash_, now=now)
    return _with_layout(found, chosen)


def _with_layout(found: Resolved, chosen: PodLayout) -> Resolved:
    """With the pods of a replica, and why they are so many in what the status says of the forecast."""
    why = f"spec.parallelism: {chosen.nodes} of at most {MOST_RANKS} pods, {chosen.why}"
    judged, broken = found.placement.forecast, found.violation
    if judged is not None:
        judged = replace(judged, message="; ".join(filter(None, (judged.message, why))))
    if broken is not None and broken.reason == TOO_SMALL:
        broken = replace(broken, message=f"{broken.message}; {why}")
    return replace(found, placement=replace(found.placement, forecast=judged), violation=broken, nodes=chosen.nodes)


def _placed(seen: Observed, settings: OperatorSettings, hash_: str, *, now: float) -> Resolved:
    placed = placement(seen, hash_)
    broken = violation(seen, placed, settings)
    if broken is not None:
        return _refused(seen, placed, broken)
    template = rendered(seen, placed, settings)
    if template.trouble:
        return _refused(seen, placed, patch_violation(placed, template.trouble))
    revision = current_revision(seen, placed.accelerator, template, now=now)
    held = fleet.held(seen, placed, revision, now=now)
    unavailable = fallback.unavailable_now(seen, placed, revision=(held or revision).id, now=now)
    return Resolved(observed=seen, placement=placed, revision=revision, held=held, unavailable_classes=unavailable)


def _refused(seen: Observed, placed: Placement, broken: Violation) -> Resolved:
    return Resolved(observed=seen, placement=placed, violation=broken, unavailable_classes=placed.unavailable)
