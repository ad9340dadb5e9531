"""The revisions that there are, newest first, each with what it changed: what a person may go back to or promote."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

from kvasir_api.status import MOST, RevisionStatus
from kvasir_operator.observed.service import Observed, Revision

MOST_REVISIONS: Final = 8
MOST_WORDS: Final = 512


def history(seen: Observed, asked: Revision | None = None) -> list[RevisionStatus]:
    """At most MOST_REVISIONS; older ones wait for nothing but their deletion.

    asked: the one that the spec requests, with the number that it has from now on.
    """
    others = [revision for revision in seen.revisions if asked is None or revision.id != asked.id]
    known = sorted([*others, *([asked] if asked else [])], key=lambda revision: revision.number)
    told = []
    for before, revision in pairwise((None, *known)):
        if revision is None:
            continue
        pods = seen.of(revision.id)
        told.append(
            RevisionStatus(
                name=revision.id[:63],
                number=max(0, min(revision.number, MOST)),
                replicas=len(pods),
                ready_replicas=sum(r.phase == "ready" for r in pods),
                changed=changed(before.inputs, revision.inputs) if before else "",
            )
        )
    return told[: -MOST_REVISIONS - 1 : -1]


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Paths at which two revisions' inputs differ, in the words of a spec; a default counts as absent."""
    one, other = dict(_leaves(before)), dict(_leaves(after))
    paths = sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path))
    said = ", ".join(paths)
    return said if len(said) <= MOST_WORDS else f"{said[: MOST_WORDS - 1]}…"


def _leaves(node: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """A list counts as one value."""
    for name, child in node.items():
        here = f"{path}.{name}".lstrip(".")
        if isinstance(child, Mapping):
            yield from _leaves(child, here)
        else:
            yield here, child
