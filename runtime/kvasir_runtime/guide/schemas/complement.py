"""The complement of a schema, keyword by keyword: a union of schemas, each of which breaks one of its rules.

What no schema can say (a text that does not match a pattern, a number that is no multiple) is left out, so that the
union may be smaller than the complement, never larger. Pure; used by rewrite.py.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final

from kvasir_runtime.guide.schemas import contained, strings, unions
from kvasir_runtime.guide.schemas.resources import SchemaPlace
from kvasir_runtime.guide.schemas.terms import Terms
from kvasir_runtime.guide.schemas.unions import Schema

NUM_POSITIONS: Final = 4
"""Items that may be the one that breaks a rule for all of them."""
OPPOSITE: Final = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
"""A bound's type, the bound beyond it, and what is added to its number."""


def of(terms: Terms, schema: Mapping[str, Schema], place: SchemaPlace) -> Schema:
    """The union."""
    return unions.any_of(
        [*_of_values(terms, schema), *_of_parts(terms, schema, place), *_of_logic(terms, schema, place)]
    )


def _of_values(terms: Terms, schema: Mapping[str, Schema]) -> Iterator[Schema]:
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        # Numbers that are no integers have no schema, so a schema of integers forbids no number here.
        others = [kind for kind in unions.KINDS if kind not in named and not (kind == "number" and "integer" in named)]
        yield {"type": others} if others else False
    if "const" in schema:
        yield of_values([schema["const"]])
    if isinstance(schema.get("enum"), list):
        yield of_values(schema["enum"])
    for keyword, (kind, opposite, step) in OPPOSITE.items():
        if keyword in schema and isinstance(schema[keyword], int | float):
            number = schema[keyword] + step
            if opposite == "minProperties" and number > 1:
                terms.loose.add(opposite)  # llguidance counts a name that is written twice as two
            yield {"type": kind, opposite: int(number) if step else number} if not step or number >= 0 else False


def of_values(values: list[Schema]) -> Schema:
    """Anything but these values."""
    by_kind: dict[str, list[Schema]] = {kind: [] for kind in unions.KINDS}
    for value in values:
        by_kind[kind_of(value)].append(value)
    options: list[Schema] = [{"type": [kind for kind, found in by_kind.items() if not found]}]
    if by_kind["boolean"]:
        options.append({"enum": [one for one in (True, False) if one not in by_kind["boolean"]]})
    if numbers := sorted(by_kind["number"]):
        options.append({"type": "number", "exclusiveMaximum": numbers[0]})
        options += [
            {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
            for low, high in pairwise(numbers)
            if low != high
        ]
        options.append({"type": "number", "exclusiveMinimum": numbers[-1]})
    if by_kind["string"]:
        options.append({"type": "string", "pattern": strings.none_of(by_kind["string"])})
    for kind in ("array", "object"):
        if by_kind[kind]:
            options.append(unions.all_of([{"type": kind}, *map(_of_composite, by_kind[kind])]))
    return unions.any_of([one for one in options if one not in ({"type": []}, {"enum": []})])


def _of_composite(value: Schema) -> Schema:
    """Arrays or objects other than this one."""
    if isinstance(value, list):
        shorter = [{"type": "array", "maxItems": len(value) - 1}] if value else []
        return unions.any_of(
            [
                *shorter,
                {"type": "array", "minItems": len(value) + 1},
                *(_item(number, of_values([one])) for number, one in enumerate(value)),
            ]
        )
    return unions.any_of(
        [
            *({"type": "object", "properties": {name: False}} for name in value),
            {"type": "object", "required": [*value], "minProperties": len(value) + 1},
            *(
                {"type": "object", "required": [name], "properties": {name: of_values([one])}}
                for name, one in value.items()
            ),
        ]
    )


def _of_parts(terms: Terms, schema: Mapping[str, Schema], place: SchemaPlace) -> Iterator[Schema]:
    """Of properties and items: one that is there and is wrong, or one that is missing."""
    properties, patterns = unions.mapping(schema, "properties"), unions.mapping(schema, "patternProperties")
    for name, one in properties.items():
        yield _property(name, terms.negative(one, place))
    for pattern, one in patterns.items():
        wrong = terms.negative(one, place)
        rest = {"properties": dict.fromkeys(properties, False), "additionalProperties": False, "minProperties": 1}
        yield {"type": "object", "patternProperties": {pattern: wrong}, **rest} if wrong is not False else False
    if "additionalProperties" in schema:
        wrong = terms.negative(schema["additionalProperties"], place)
        known = dict.fromkeys(properties, False)
        rest = {"patternProperties": dict.fromkeys(patterns, False), "minProperties": 1}
        yield (
            {"type": "object", "properties": known, **rest, "additionalProperties": wrong}
            if wrong is not False
            else False
        )
    for name in schema.get("required", ()):
        yield {"type": "object", "properties": {name: False}}
    prefix = unions.listed(schema, "prefixItems")
    for number, one in enumerate(prefix):
        yield _item(number, terms.negative(one, place))
    if "items" in schema:
        wrong = terms.negative(schema["items"], place)
        yield from (_item(len(prefix) + number, wrong) for number in range(NUM_POSITIONS))
    if "contains" in schema:
        yield from contained.negative(terms, schema, place)


def _of_logic(terms: Terms, schema: Mapping[str, Schema], place: SchemaPlace) -> Iterator[Schema]:
    positive, negative = terms.positive, terms.negative
    for target in terms.targets(schema, place):
        yield terms.reference(target, positive=False)
    yield from (negative(one, place) for one in unions.listed(schema, "allOf"))
    if options := unions.listed(schema, "anyOf"):
        yield unions.all_of([negative(one, place) for one in options])
    if options := unions.listed(schema, "oneOf"):
        yield unions.all_of([negative(one, place) for one in options])
        for number, one in enumerate(options):
            for other in options[number + 1 :]:
                yield unions.all_of([positive(one, place), positive(other, place)])
    if "not" in schema:
        yield positive(schema["not"], place)
    if "if" in schema:
        yield unions.all_of([positive(schema["if"], place), negative(schema.get("then", True), place)])
        yield unions.all_of([negative(schema["if"], place), negative(schema.get("else", True), place)])
    for name, needed in unions.dependencies(schema):
        here = {"type": "object", "required": [name]}
        if isinstance(needed, list):
            yield from ({**here, "properties": {missing: False}} for missing in needed)
        else:
            yield unions.all_of([here, negative(needed, place)])


def _property(name: str, wrong: Schema) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: wrong}} if wrong is not False else False


def _item(number: int, wrong: Schema) -> Schema:
    if wrong is False:
        return False
    return {"type": "array", "prefixItems": [*[True] * number, wrong], "minItems": number + 1}


def kind_of(value: Schema) -> str:
    """The JSON type of a value; integers are numbers."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
