"""Whether no value can fit two schemas, as far as types, constants and required properties show it. Pure."""

from collections.abc import Mapping
from typing import Final

from kvasir_runtime.guide.schemas import complement, unions
from kvasir_runtime.guide.schemas.resources import SchemaPlace
from kvasir_runtime.guide.schemas.terms import Terms
from kvasir_runtime.guide.schemas.unions import Schema

MAX_DEPTH: Final = 8


def disjoint(terms: Terms, one: tuple[Schema, SchemaPlace], other: tuple[Schema, SchemaPlace], depth: int = 0) -> bool:
    """True only where they are: False where it is not known."""
    (first, first_place), (second, second_place) = _resolved(terms, *one), _resolved(terms, *other)
    if first is False or second is False:
        return True
    if not isinstance(first, Mapping) or not isinstance(second, Mapping) or depth > MAX_DEPTH:
        return False
    kinds, others = _kinds(first), _kinds(second)
    if not kinds & others:
        return True
    values, more = _values(first), _values(second)
    if values is not None and more is not None:
        return not any(_same(a, b) for a in values for b in more)
    if kinds & others != {"object"}:
        return False
    properties, theirs = first.get("properties"), second.get("properties")
    if not isinstance(properties, Mapping) or not isinstance(theirs, Mapping):
        return False
    needed = {*_required(first), *_required(second)}
    return any(
        disjoint(terms, (properties[name], first_place), (theirs[name], second_place), depth + 1)
        for name in needed
        if name in properties and name in theirs
    )


def _resolved(terms: Terms, schema: Schema, place: SchemaPlace) -> tuple[Schema, SchemaPlace]:
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        found = terms.resources.referred(schema["$ref"], terms.resources.entered(schema, place))
        schema, place = found.schema, found.place
    return schema, place


def _kinds(schema: Mapping[str, Schema]) -> set[str]:
    named = schema.get("type", unions.KINDS)
    kinds = {named} if isinstance(named, str) else {*named}
    found = {"number" if kind == "integer" else kind for kind in kinds}
    values = _values(schema)
    return found if values is None else found & {complement.kind_of(value) for value in values}


def _values(schema: Mapping[str, Schema]) -> list[Schema] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _required(schema: Mapping[str, Schema]) -> list[str]:
    return schema["required"] if isinstance(schema.get("required"), list) else []


def _same(a: Schema, b: Schema) -> bool:
    return complement.kind_of(a) == complement.kind_of(b) and a == b
