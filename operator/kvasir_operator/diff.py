"""What must be written to bring the children from what is to what ought to be. Called by the loop, knows no client."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from kvasir_api.quantity import parse
from kvasir_kube.kinds import Json
from kvasir_operator.observed.service import Observed

QUANTITY_PARENTS: Final = ("requests", "limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write. verb apply carries the manifest; new: no object of ours is there yet. delete carries the
    uid."""

    verb: Literal["apply", "delete"]
    kind: str
    name: str
    manifest: Json
    uid: str = ""
    new: bool = False


def diff(seen: Observed, wanted: Iterable[Json], surplus_revisions: Iterable[str] = ()) -> tuple[Write, ...]:
    """Writes in the order in which they must happen: revisions before their workloads, deletions last.

    A child is left alone when everything that we would apply is there already; fields that others added do not matter.
    """
    found = _found(seen)
    applies = []
    names_wanted = set()
    for manifest in wanted:
        where = (manifest["kind"], manifest["metadata"]["name"])
        names_wanted.add(where)
        if where not in found or not contains(found[where], manifest):
            applies.append(Write(verb="apply", kind=where[0], name=where[1], manifest=manifest, new=where not in found))
    gone = [("Deployment", w.name, w.uid) for w in seen.workloads if ("Deployment", w.name) not in names_wanted]
    kept = {revision.name: revision.uid for revision in seen.revisions}
    gone += [("ControllerRevision", name, kept[name]) for name in surplus_revisions]
    deletes = [Write(verb="delete", kind=kind, name=name, uid=uid, manifest={}) for kind, name, uid in gone]
    return (*applies, *deletes)


def removals(found: Json, wanted: Json) -> Json:
    """A JSON merge patch that leaves wanted of found, where found has more: None for a field that is to go.

    Empty when found has nothing but what is wanted.
    """
    patch: Json = {}
    for name, value in found.items():
        if name not in wanted:
            patch[name] = None
        elif isinstance(value, dict) and isinstance(wanted[name], dict):
            if inner := removals(value, wanted[name]):
                patch[name] = inner
        elif isinstance(value, list) and value != wanted[name]:
            patch[name] = wanted[name]
    return patch


def contains(found: Any, wanted: Any, parent: str = "") -> bool:
    """Whether everything in wanted is in found; lists must be equal in length, quantities are compared by value."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return False
        return all(
            name in found and contains(found[name], value, _inner(parent, name)) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return False
        return all(contains(have, want, parent) for have, want in zip(found, wanted, strict=True))
    if parent == "quantity" and isinstance(found, str) and isinstance(wanted, str):
        return _quantity(found) == _quantity(wanted)
    return bool(found == wanted)


def _inner(parent: str, name: str) -> str:
    return "quantity" if parent in QUANTITY_PARENTS else name


def _quantity(text: str) -> Decimal | str:
    try:
        return parse(text)
    except ValueError:
        return text


def _found(seen: Observed) -> dict[tuple[str, str], Json]:
    # A StatefulSet is wanted only where there is none.
    found = {("Deployment", w.name): w.found for w in seen.workloads}
    found.update({("ControllerRevision", r.name): r.found for r in seen.revisions})
    if seen.svc is not None:
        found["Service", seen.svc["metadata"]["name"]] = seen.svc
    found.update({(guard["kind"], guard["metadata"]["name"]): guard for guard in seen.guards})
    return found
