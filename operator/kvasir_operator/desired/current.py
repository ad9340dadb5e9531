"""The revision that a spec asks for now: one that exists, with its template as it was rendered then, or a new one."""

from dataclasses import replace

from kvasir_operator.desired.children import child_name
from kvasir_operator.desired.revision import inputs, revision_id
from kvasir_operator.desired.template import patches, template
from kvasir_operator.observed.service import Observed, Revision
from kvasir_operator.observed.settings import OperatorSettings


def current_revision(seen: Observed, settings: OperatorSettings) -> Revision:
    """The revision of the present spec. Its number is the highest of all, also when an old one is asked for again."""
    parts = inputs(seen, patches(seen, settings).effective)
    id_ = revision_id(parts)
    newest = max((revision.number for revision in seen.revisions), default=0)
    known = seen.revision(id_)
    if known is not None:
        return known if known.number == newest else replace(known, number=newest + 1)
    return Revision(
        id=id_,
        number=newest + 1,
        inputs=parts,
        template=template(seen, id_, settings),
        name=child_name(seen.name, id_),
    )
