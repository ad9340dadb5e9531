"""Which inputs make a revision, and its identity: equal inputs are the same revision, whatever the operator's version.

Only values that differ from the contract's defaults are hashed, so a new field with a default changes no running pod.
"""

import hashlib
import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from kvasir_api.accelerator import AcceleratorClassSpec, PodPatch, pod_shape
from kvasir_kube.kinds import Json
from kvasir_operator.desired.remote_model import commit
from kvasir_operator.observed.service import Observed

PARTS: Final = {"model", "resources", "runtime", "drain", "auth", "observability", "pod"}
"""Parts of the spec that shape a pod. Replicas, autoscaling and rollout do not."""
OF_A_CHOICE: Final = ("classes", "minMemory", "spot", "fallbackSeconds")
ACCELERATOR_CLASS: Final = "acceleratorClass"
"""Among the inputs where there is a class: its fields that shape pods."""
RUNTIME_IMAGE: Final = "runtimeImage"
"""Among the inputs only of a revision that replaces one of equal inputs for another image."""
POD_TLS: Final = "podTls"
"""Among the inputs only where pods speak TLS: switched on or off, pods are replaced as by any change."""
ID_LENGTH: Final = 10
KEPT_REVISIONS: Final = 5
"""Old revisions that stay for going back."""


def inputs(seen: Observed, accelerator: AcceleratorClassSpec | None, patches: Sequence[PodPatch] = ()) -> Json:
    """What the pods of a service depend on. The served name is resolved, since it defaults to the object's name; so is
    the accelerator class: its fields that shape pods count, and not how it was chosen. A model on a hub has its commit.

    patches: those of the class that change this service's pods; others shape nothing.
    """
    parts = seen.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=PARTS)
    for name in ("servedName", "inspect"):
        parts["model"].pop(name, None)
    if pinned := commit(seen):
        parts["model"]["commit"] = pinned
    if accelerator is not None:
        said = pod_shape(accelerator)
        parts[ACCELERATOR_CLASS] = said
        if patches:
            said["podPatches"] = [patch.model_dump(mode="json", exclude_defaults=True) for patch in patches]
        for name in OF_A_CHOICE:
            parts["resources"]["accelerator"].pop(name, None)
    return {**parts, "servedName": seen.served_name}


def revision_id(parts: Json) -> str:
    """Hash of inputs: lower-case hex, fit for names and labels."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


def surplus(seen: Observed, wanted: AbstractSet[str]) -> tuple[str, ...]:
    """Names of ControllerRevisions to delete: the oldest beyond KEPT_REVISIONS that have neither workload nor pod.

    wanted: revisions that the spec requests or that a rollback heads for; the last good one stays too.
    """
    used = {
        *wanted,
        seen.status.rollout.last_good_revision,
        *(w.revision for w in seen.workloads),
        *(r.revision for r in seen.replicas),
    }
    old = [revision for revision in seen.revisions if revision.id not in used]
    return tuple(revision.name for revision in old[: max(0, len(old) - KEPT_REVISIONS)])
