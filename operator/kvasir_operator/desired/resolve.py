"""What a spec means on this cluster, once per reconcile: class, forecast, violation, pod template and revision.

Called by the loop, with what is known of the model then.
"""

from dataclasses import replace

from kvasir_operator.desired import fallback, fleet, reductions
from kvasir_operator.desired.accelerator import placement
from kvasir_operator.desired.current import current_revision
from kvasir_operator.desired.template import rendered
from kvasir_operator.desired.validation import TOO_SMALL, patch_violation, violation
from kvasir_operator.observed.service import Observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.stages import Placement, Resolved, Violation


def resolve(seen: Observed, settings: OperatorSettings, *, now: float) -> Resolved:
    """The second stage. now: epoch seconds."""
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
    return replace(found, observed=seen, reductions=rungs, reductions_left=left)


def _resolved(seen: Observed, settings: OperatorSettings, hash_: str, *, now: float) -> Resolved:
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
