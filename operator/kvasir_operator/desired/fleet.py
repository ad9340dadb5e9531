"""Changes of the installation, which concern many services at once and which no spec requests: an edit of an
AcceleratorClass, a new runtime image for services that follow it, TLS of pods.

A service that serves keeps its revision until it is its turn, which `rollout/turns.py` decides over all services.
Called by `resolve.py`, and by the loop.
"""

from typing import Final

from kvasir_kube.kinds import Json
from kvasir_operator.desired.current import is_hindered
from kvasir_operator.desired.revision import ACCELERATOR_CLASS, POD_TLS, RUNTIME_IMAGE
from kvasir_operator.desired.runtime_image import FOLLOW, image_tag, runtime_image
from kvasir_operator.observed.service import Observed, Revision
from kvasir_operator.stages import Placement

OF_INSTALLATION: Final = {ACCELERATOR_CLASS, RUNTIME_IMAGE, POD_TLS}
"""Inputs of a revision that may change without a change of the spec."""


def held(seen: Observed, placed: Placement, wanted: Revision, *, now: float) -> Revision | None:
    """The revision that the service keeps until it is its turn; None where it may take wanted at once.

    It may where its spec has changed too, where nothing serves or moves, and where the present one is of no use. now:
    epoch seconds.
    """
    newest = max(seen.revisions, key=lambda revision: revision.number, default=None)
    if newest is None or newest.id == wanted.id or seen.spec.rollout.paused:
        return None
    if not any(r.live and r.phase == "ready" for r in seen.replicas) or is_hindered(seen, newest, now):
        return None
    if not _alike(seen, newest, wanted) or _class_by_request(seen, placed, newest, wanted):
        return None
    return newest


def is_taking(seen: Observed) -> bool:
    """Whether the service is on its way to what the installation changed. It is so until all its replicas have been
    ready and those before are gone with their accelerators, and while what it took fails."""
    last = sorted(seen.revisions, key=lambda revision: revision.number)[-2:]
    # A workload counts as its pods do: in place there may be none for a moment.
    there = {r.revision for r in seen.replicas if r.live} | {w.revision for w in seen.workloads if w.replicas}
    if len(last) < 2 or not there or seen.spec.rollout.paused or not _alike(seen, *last):
        return False
    if not seen.status.rollout.last_good_revision:  # it has never served, whatever it takes, and holds up no other one
        return False
    return last[1].id != seen.status.rollout.last_good_revision or there != {last[1].id}


def _alike(seen: Observed, one: Revision, other: Revision) -> bool:
    """Whether the same spec may have requested both."""
    pinned = seen.spec.runtime_version not in ("", FOLLOW) and not (_has_own_image(one) or _has_own_image(other))
    if pinned and image_tag(runtime_image(one.template)) != image_tag(runtime_image(other.template)):
        return False
    return _of_spec(one) == _of_spec(other)


def _has_own_image(revision: Revision) -> bool:
    """Whether its class names the image, which goes before the version of the spec."""
    return bool((revision.inputs.get(ACCELERATOR_CLASS) or {}).get("runtimeImage"))


def _of_spec(revision: Revision) -> Json:
    return {name: value for name, value in revision.inputs.items() if name not in OF_INSTALLATION}


def _class_by_request(seen: Observed, placed: Placement, newest: Revision, wanted: Revision) -> bool:
    """Whether another class is due to the spec, which lists others now, or to want of nodes of the one before."""
    if newest.inputs.get(ACCELERATOR_CLASS) == wanted.inputs.get(ACCELERATOR_CLASS):
        return False
    before = seen.status.rollout
    return before.pod_hash != placed.pod_hash or before.accelerator_class in placed.unavailable
