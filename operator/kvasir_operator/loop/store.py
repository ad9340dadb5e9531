"""The operator's memory of the cluster: objects as the watches delivered them, found by the service they belong to.

Written by handlers, by the periodic lists and by our own writes; an older version never replaces a newer one, unless a
list has shown that the API server's own store was restored from a backup.
"""

from collections.abc import Iterator, Mapping
from typing import cast

from kvasir_api import names
from kvasir_kube.kinds import (
    ACCELERATOR_CLASS,
    INFERENCE_SERVICE,
    Json,
    Key,
    Kind,
    key,
    labels,
    resource_version,
    strip_managed_fields,
    uid,
    with_shared_parts,
)
from kvasir_operator.loop.name_index import NameIndex


class Store:
    """Objects by kind, indexed by (namespace, service). names: which services claim a model name; reserved_names: as of
    `OperatorSettings`."""

    def __init__(self, reserved_names: Mapping[str, str] | None = None) -> None:
        self.names = NameIndex(reserved_names or {})
        self._objects: dict[str, dict[Key, Json]] = {}
        self._children: dict[str, dict[Key, set[Key]]] = {}
        self._gone: dict[tuple[str, Key], int] = {}
        self._gone_before: dict[tuple[str, Key], int] = {}
        self._last: dict[str, Json] = {}

    def put(self, kind: Kind, obj: Json, *, shared: bool = False) -> bool:
        """Remember an object. False when it is older than what is known, its deletion included, or the same. shared:
        it is what `kept` made of one."""
        objects = self._objects.setdefault(kind.plural, {})
        known, where = objects.get(key(obj)), (kind.plural, key(obj))
        gone = max(self._gone.get(where, 0), self._gone_before.get(where, 0))
        # Also of another object of the same name: versions count for the whole kind.
        if resource_version(obj) <= max(gone, resource_version(known) if known else 0):
            return False
        if known is not None:
            self._unindex(kind, known)
        objects[key(obj)] = self._last[kind.plural] = obj if shared else self._kept(kind, obj, known)
        self._children.setdefault(kind.plural, {}).setdefault(parent(obj), set()).add(key(obj))
        if kind is INFERENCE_SERVICE:
            self.names.add(objects[key(obj)])
        return True

    def drop(self, kind: Kind, name: Key, uid_: str = "", *, version: int = 0) -> bool:
        """Forget an object; with a uid only that very one. version: of its deletion, where that is known: an older
        answer that was on its way meanwhile does not bring it back."""
        if version:
            self._gone[kind.plural, name] = version
        known = self._objects.get(kind.plural, {}).get(name)
        if known is None or (uid_ and uid(known) != uid_):
            return False
        del self._objects[kind.plural][name]
        if self._last.get(kind.plural) is known:
            del self._last[kind.plural]
        self._unindex(kind, known)
        return True

    def known(self, kind: Kind, name: Key, version: str) -> Json | None:
        """The remembered object of that version, None where there is none."""
        before = self.get(kind, name)
        return before if before is not None and before["metadata"].get("resourceVersion") == version else None

    def kept(self, kind: Kind, obj: Json) -> Json:
        """What of an object that was listed is worth keeping."""
        kept = self._kept(kind, obj, self.get(kind, key(obj)))
        self._last.setdefault(kind.plural, kept)
        return kept

    def rewind(self, kind: Kind, name: Key) -> None:
        """Forget an object and its end, so that any version of it is news."""
        self.drop(kind, name)
        for ends in (self._gone, self._gone_before):
            ends.pop((kind.plural, name), None)

    def versions(self, kind: Kind) -> dict[Key, int]:
        """The last version of each object that is known, or of its end."""
        ends = [
            (name, at)
            for gone in (self._gone_before, self._gone)
            for (plural, name), at in gone.items()
            if plural == kind.plural
        ]
        found = dict(ends)
        for name, obj in self._objects.get(kind.plural, {}).items():
            found[name] = max(resource_version(obj), found.get(name, 0))
        return found

    def age(self) -> None:
        """Forget deletions that were known when this was called last: no answer that is still on its way is older."""
        self._gone_before, self._gone = self._gone, {}

    def get(self, kind: Kind, name: Key) -> Json | None:
        """One object, None when it is not known."""
        return self._objects.get(kind.plural, {}).get(name)

    def all(self, kind: Kind) -> Iterator[Json]:
        """All objects of a kind."""
        yield from list(self._objects.get(kind.plural, {}).values())

    def of(self, kind: Kind, service: Key) -> list[Json]:
        """Objects that carry the label of one service."""
        objects = self._objects.get(kind.plural, {})
        return [objects[name] for name in sorted(self._children.get(kind.plural, {}).get(service, ()))]

    def touched(self, kind: Kind, obj: Json) -> Iterator[Key]:
        """Services that a change of the object may concern: its own one, or all with an accelerator class."""
        if kind is ACCELERATOR_CLASS:
            for service in self.all(INFERENCE_SERVICE):
                asked = ((service.get("spec") or {}).get("resources") or {}).get("accelerator") or {}
                if asked.get("classes") or asked.get("minMemory"):
                    yield key(service)
        elif (service_key := parent(obj))[1]:
            yield service_key

    def _kept(self, kind: Kind, obj: Json, known: Json | None) -> Json:
        return cast("Json", with_shared_parts(strip_managed_fields(obj), known or self._last.get(kind.plural)))

    def _unindex(self, kind: Kind, known: Json) -> None:
        """Its label may change, so an object leaves the index of the service that it named last."""
        children = self._children[kind.plural]
        named = children[parent(known)]
        named.discard(key(known))
        if not named:
            del children[parent(known)]
        if kind is INFERENCE_SERVICE:
            self.names.remove(known)


def parent(obj: Json) -> Key:
    """Namespace and name of the service that an object is about: by its label, or itself."""
    namespace, name = key(obj)
    if obj.get("kind") == names.KIND:
        return namespace, name
    marks = labels(obj)
    found = (marks.get(label) for label in (names.LABEL_SERVICE, names.LABEL_INSPECTS, names.LABEL_FETCHES))
    return namespace, next(filter(None, found), "")
