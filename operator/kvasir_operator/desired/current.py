"""The revision that a spec requests now: one that exists, with its template as it was rendered then, or a new one."""

from dataclasses import replace

from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_operator.desired.children import child_name
from kvasir_operator.desired.patches import PatchedTemplate
from kvasir_operator.desired.revision import inputs, revision_id
from kvasir_operator.desired.template import named
from kvasir_operator.observed.service import Observed, Revision


def current_revision(seen: Observed, accelerator: AcceleratorClassSpec | None, rendered: PatchedTemplate) -> Revision:
    """The revision of the present spec. rendered: its pod template before the revision has a name.

    Its number is the highest of all, also when an old one is asked for again."""
    parts = inputs(seen, accelerator, rendered.effective)
    id_ = revision_id(parts)
    newest = max((revision.number for revision in seen.revisions), default=0)
    known = seen.revision(id_)
    if known is not None:
        return known if known.number == newest else replace(known, number=newest + 1)
    return Revision(
        id=id_,
        number=newest + 1,
        inputs=parts,
        template=named(rendered.template, id_),
        name=child_name(seen.name, id_),
    )
