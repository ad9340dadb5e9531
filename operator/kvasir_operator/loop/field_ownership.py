"""Which fields of a child the operator owns, as the API server keeps it in managedFields.

A child is created by one request, and its fields are then owned by an update; later changes are applied. A field that a
later operator no longer applies is removed only if it was owned by an apply, so ownership is moved before the first one
of a process. Called by the writer; the form is that of Kubernetes' server-side apply.
"""

from kvasir_kube.kinds import Json


def owned_by_apply(obj: Json, manager: str) -> list[Json]:
    """The managedFields of the object with all that the manager owns in one entry of an apply; empty when there is
    nothing to move."""
    entries: list[Json] = (obj.get("metadata") or {}).get("managedFields") or []
    ours = [e for e in entries if e.get("manager") == manager and not e.get("subresource")]
    if not any(e.get("operation") == "Update" for e in ours):
        return []
    fields: Json = {}
    for entry in ours:
        fields = _union(fields, entry.get("fieldsV1") or {})
    merged = {**ours[0], "operation": "Apply", "fieldsV1": fields}
    return [merged, *(e for e in entries if e not in ours)]


def _union(one: Json, other: Json) -> Json:
    """Sets of fields are nested objects whose leaves are empty."""
    return {**one, **{name: _union(one.get(name, {}), inner) for name, inner in other.items()}}
