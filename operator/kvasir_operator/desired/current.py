"""The revision that a spec requests now: one that exists, with its template as it was rendered then, or a new one.

A revision keeps its image when the operator's changes, unless its image is why it does not serve, or
spec.runtimeVersion says otherwise.
"""

from dataclasses import replace
from typing import Final

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_kube.kinds import Json
from kvasir_operator.desired.children import child_name
from kvasir_operator.desired.patches import PatchedTemplate
from kvasir_operator.desired.revision import POD_TLS, RUNTIME_IMAGE, inputs, revision_id
from kvasir_operator.desired.runtime_image import FOLLOW, image_tag, runtime_image
from kvasir_operator.desired.template import named, speaks_tls
from kvasir_operator.observed.service import Observed, Revision

PULL_PATIENCE_S: Final = 120.0
"""Replicas that serve are replaced for an image that another one cannot pull only when that lasts: a registry may be
away for a moment."""


def current_revision(
    seen: Observed, accelerator: AcceleratorClassSpec | None, rendered: PatchedTemplate, *, now: float
) -> Revision:
    """The revision of the present spec. rendered: its pod template before the revision has a name. now: epoch seconds.

    Its number is the highest of all, also when an old one is asked for again."""
    parts = inputs(seen, accelerator, rendered.effective)
    if speaks_tls(rendered.template):
        parts[POD_TLS] = True
    made, image = _made(seen, parts), runtime_image(rendered.template)
    known = made[-1] if made else None
    if known is not None and image != runtime_image(known.template) and _takes_image(seen, known, now):
        parts = {**parts, RUNTIME_IMAGE: image}
        known = next((revision for revision in reversed(made) if runtime_image(revision.template) == image), None)
    newest = max((revision.number for revision in seen.revisions), default=0)
    if known is not None:
        return known if known.number == newest else replace(known, number=newest + 1)
    id_ = revision_id(parts)
    return Revision(
        id=id_,
        number=newest + 1,
        inputs=parts,
        template=named(rendered.template, id_),
        name=child_name(seen.name, id_),
    )


def _made(seen: Observed, parts: Json) -> list[Revision]:
    """Those that were made of these inputs, with whatever image, the last one at the end."""
    plain = revision_id(parts)
    made = [r for r in seen.revisions if r.id == plain or _without_image(r.inputs) == parts]
    return sorted(made, key=lambda revision: revision.number)


def _takes_image(seen: Observed, known: Revision, now: float) -> bool:
    """Whether another image than that of a revision is to serve its inputs. A pinned version is the tag alone, so that
    images which move to another registry replace no pod."""
    version = seen.spec.runtime_version
    if version == FOLLOW or (version and image_tag(runtime_image(known.template)) != version):
        return True
    return is_hindered(seen, known, now)


def is_hindered(seen: Observed, known: Revision, now: float) -> bool:
    """Whether another image may help a revision: its own cannot be pulled, or it fails and has never served."""
    mine = seen.of(known.id)
    unpulled = [r for r in mine if r.image_failure]
    if any(r.phase == "ready" for r in mine):
        return any(now - r.created >= PULL_PATIENCE_S for r in unpulled)
    never_served = known.id != seen.status.rollout.last_good_revision
    return bool(unpulled) or (never_served and any(r.phase == "failed" for r in mine))


def _without_image(parts: Json) -> Json:
    return {name: value for name, value in parts.items() if name != RUNTIME_IMAGE}
