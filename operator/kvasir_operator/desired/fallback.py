"""Accelerator classes that found no node for a service's pods, so that the next one is tried. Called by the choice of a
class, and by the loop after it has looked.

A class is passed over only while it gave no pod a node at all: a service that runs there and cannot grow is left where
it is. What was passed over holds until the spec asks for other pods; then the first choice is tried again.
"""

import hashlib
import json
from typing import Final

from kvasir_api.accelerator import OF_PODS
from kvasir_operator.observed.service import Observed

PARTS: Final = {"model", "resources", "runtime", "pod"}


def asked(seen: Observed) -> str:
    """Hash of what the spec asks of pods, the preference of classes included."""
    parts = seen.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=PARTS)
    parts.get("resources", {}).get("accelerator", {}).pop("fallbackSeconds", None)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def passed(seen: Observed) -> tuple[str, ...]:
    """Classes that are passed over for the present spec, in the order in which they were tried."""
    before = seen.status.rollout
    return tuple(before.unavailable_classes) if before.pod_hash and before.pod_hash == asked(seen) else ()


def passed_now(seen: Observed, *, revision: str, name: str, considered: tuple[str, ...], now: float) -> tuple[str, ...]:
    """The same, after a look at the pods. name: the class that is tried, whose pods are those of the revision.

    considered: all classes that may be tried. now: epoch seconds. When all were tried in vain it begins anew.
    """
    before = passed(seen)
    wait_s = seen.spec.resources.accelerator.fallback_seconds
    pods = seen.of(revision)
    found_none = bool(pods) and all(r.phase == "unschedulable" and not r.assigned for r in pods)
    # Of classes whose pods are the same, another one would find no node either.
    others = [other for other in considered if other in seen.classes and _shape(seen, other) != _shape(seen, name)]
    if not (wait_s and others and found_none) or now - min(r.created for r in pods) < wait_s:
        return before
    return (name,) if name in before else (*before, name)


def _shape(seen: Observed, name: str) -> object:
    """What a class makes of pods."""
    known = seen.classes.get(name)
    return known and known.model_dump(include={*OF_PODS, "pod_patches"})
