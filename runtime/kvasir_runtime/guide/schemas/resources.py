"""Where the references of a JSON schema lead: $id, $anchor, $dynamicAnchor, pointers, and the dynamic scope.

Only what the schema itself holds is found; nothing is fetched. After draft 2020-12, core, sections 8 and 9. Used by the
rewriting of schemas. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from kvasir_runtime.guide.errors import GrammarError

MAX_SCOPE: Final = 16
ROOT: Final = "/"
"""The base address of a schema without $id; one to which relative references can be joined."""
NAMED: Final = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
LISTED: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLE: Final = (
    "additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip


class SchemaPlace(NamedTuple):
    """Where a schema stands: the address of its resource, and of those that references passed, outermost first."""

    base: str
    scope: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocatedSchema:
    """A schema with its place."""

    schema: Any
    place: SchemaPlace


class SchemaResources:
    """The resources of one schema. Raises GrammarError where a reference leads nowhere."""

    def __init__(self, root: Any) -> None:
        self._roots: dict[str, Any] = {}
        self._anchors: dict[tuple[str, str], tuple[Any, bool]] = {}
        self._bases: dict[int, str] = {}
        base = _address(root, ROOT)
        self._roots[base] = root
        self._add(root, base)
        self.start = LocatedSchema(root, SchemaPlace(base, (base,)))

    def entered(self, schema: Any, place: SchemaPlace) -> SchemaPlace:
        """The place of a subschema that is reached without a reference: an $id opens a resource."""
        return self._moved(place, _address(schema, place.base))

    def referred(self, reference: str, place: SchemaPlace) -> LocatedSchema:
        """What $ref leads to."""
        located, _ = self._found(reference, place)
        return located

    def dynamically_referred(self, reference: str, place: SchemaPlace) -> LocatedSchema:
        """What $dynamicRef leads to: the outermost resource of the scope with that dynamic anchor."""
        located, anchor = self._found(reference, place)
        if not anchor:
            return located
        for base in place.scope:
            target, dynamic = self._anchors.get((base, anchor), (None, False))
            if dynamic:
                return LocatedSchema(target, self._moved(place, self._bases.get(id(target), base)))
        return located

    def _found(self, reference: str, place: SchemaPlace) -> tuple[LocatedSchema, str]:
        """The target, and the name of its anchor where that is a dynamic one."""
        address, fragment = urldefrag(_joined(place.base, reference))
        if address not in self._roots:
            raise GrammarError(f"the schema's reference {reference[:200]!r} leads out of the schema")
        if fragment and not fragment.startswith("/"):
            known = self._anchors.get((address, unquote(fragment)))
            if known is None:
                raise GrammarError(f"the schema's reference {reference[:200]!r} names no anchor in it")
            target, dynamic = known
            return LocatedSchema(target, self._moved(place, self._bases.get(id(target), address))), fragment * dynamic
        target, base = self._pointed(self._roots[address], address, unquote(fragment), reference)
        return LocatedSchema(target, self._moved(place, base)), ""

    def _pointed(self, root: Any, base: str, pointer: str, reference: str) -> tuple[Any, str]:
        target, base = root, _address(root, base)
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdigit() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise GrammarError(f"the schema's reference {reference[:200]!r} leads nowhere")
            base = self._bases.get(id(target), _address(target, base))
        return target, base

    def _moved(self, place: SchemaPlace, base: str) -> SchemaPlace:
        """Scopes keep the first of each resource, so that recursion has finitely many places."""
        if base == place.base:
            return place
        scope = place.scope if base in place.scope else (*place.scope, base)
        if len(scope) > MAX_SCOPE:
            raise GrammarError(f"the schema's references pass more than {MAX_SCOPE} schemas with an $id")
        return SchemaPlace(base, scope)

    def _add(self, schema: Any, base: str) -> None:
        if not isinstance(schema, Mapping):
            return
        base = _address(schema, base)
        self._roots.setdefault(base, schema)
        self._bases[id(schema)] = base
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := schema.get(keyword), str):
                self._anchors[base, name] = schema, keyword == "$dynamicAnchor"
        for one in subschemas(schema):
            self._add(one, base)


def subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """The schemas right below one."""
    for keyword in NAMED:
        if isinstance(named := schema.get(keyword), Mapping):
            yield from named.values()
    for keyword in LISTED:
        if isinstance(listed := schema.get(keyword), list):
            yield from listed
    for keyword in SINGLE:
        if keyword in schema:
            yield schema[keyword]


def _address(schema: Any, base: str) -> str:
    own = schema.get("$id") if isinstance(schema, Mapping) else None
    return urldefrag(_joined(base, own)).url if isinstance(own, str) else base


def _joined(base: str, reference: str) -> str:
    """RFC 3986's joining; urljoin leaves fragments of addresses alone whose scheme it does not know, such as urn."""
    return base + reference if reference.startswith("#") else urljoin(base, reference)
