"""Accelerator classes that found no node for a service's pods, so that the next one is tried. Called by the choice of a
class, and when the revision is known whose pods wait.

A class is passed over only while it gave no pod a node at all: a service that runs there and cannot grow is left where
it is. What was passed over holds until the spec requests other pods; then the first choice is tried again.
"""

import hashlib
import json
from typing import Final

from kvasir_api.accelerator import OF_PODS
from kvasir_api.service import InferenceServiceSpec
from kvasir_operator.observed.service import Observed
from kvasir_operator.stages import Placement

PARTS: Final = {"model", "resources", "runtime", "pod"}


def pod_hash(spec: InferenceServiceSpec) -> str:
    """Hash of the parts of the spec that shape pods, the preference of classes included."""
    parts = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=PARTS)
    parts.get("resources", {}).get("accelerator", {}).pop("fallbackSeconds", None)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def unavailable(seen: Observed, hash_: str) -> tuple[str, ...]:
    """Classes that are passed over for the pods of that hash, in the order in which they were tried."""
    before = seen.status.rollout
    return tuple(before.unavailable_classes) if before.pod_hash == hash_ else ()


def unavailable_now(seen: Observed, placed: Placement, *, revision: str, now: float) -> tuple[str, ...]:
    """The same, after a look at the pods of the revision, which run on the chosen class. now: epoch seconds.

    When all classes were tried in vain the list starts again.
    """
    before, name = placed.unavailable, placed.choice.name
    wait_s = seen.spec.resources.accelerator.fallback_seconds
    pods = seen.of(revision)
    found_none = bool(pods) and all(r.phase == "unschedulable" and not r.assigned for r in pods)
    if not wait_s or not found_none or now - min(r.created for r in pods) < wait_s:
        return before
    # Of classes whose pods are the same, another one would find no node either.
    known = [other for other in placed.choice.considered if other in seen.classes]
    if all(_shape(seen, other) == _shape(seen, name) for other in known):
        return before
    return (name,) if name in before else (*before, name)


def _shape(seen: Observed, name: str) -> object:
    """What a class makes of pods."""
    known = seen.classes.get(name)
    return known and known.model_dump(include={*OF_PODS, "pod_patches"})
