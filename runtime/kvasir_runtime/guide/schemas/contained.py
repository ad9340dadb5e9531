"""contains, minContains and maxContains as unions over the places of the items that are counted.

Only the first NUM_POSITIONS items can be those that must be there. Pure; used by rewrite.py.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from typing import Final

from kvasir_runtime.guide.schemas import unions
from kvasir_runtime.guide.schemas.resources import SchemaPlace
from kvasir_runtime.guide.schemas.terms import Terms
from kvasir_runtime.guide.schemas.unions import Schema

NUM_POSITIONS: Final = 6
MAX_WAYS: Final = 20


def positive(terms: Terms, schema: Mapping[str, Schema], place: SchemaPlace) -> Schema:
    """Values of other types, and arrays with the right number of such items."""
    least, most = _bounds(schema)
    if most is None and least == 0:
        return {}
    if most is not None and most < least:
        return unions.guarded("array", [])
    found = terms.positive(schema["contains"], place)
    if most is None:
        return unions.guarded("array", [_with(ways, found, True) for ways in _ways(least)])
    other = terms.negative(schema["contains"], place)
    counts = range(least, min(most, NUM_POSITIONS) + 1)
    return unions.guarded("array", [_with(ways, found, other) for count in counts for ways in _ways(count)])


def negative(terms: Terms, schema: Mapping[str, Schema], place: SchemaPlace) -> Iterator[Schema]:
    """Arrays with fewer such items, or with more."""
    least, most = _bounds(schema)
    other = terms.negative(schema["contains"], place)
    for count in range(min(least, NUM_POSITIONS)):
        yield from (
            {"type": "array", **_with(ways, terms.positive(schema["contains"], place), other)} for ways in _ways(count)
        )
    if most is not None:
        found = terms.positive(schema["contains"], place)
        yield from ({"type": "array", **_with(ways, found, True)} for ways in _ways(most + 1))


def _bounds(schema: Mapping[str, Schema]) -> tuple[int, int | None]:
    most = schema.get("maxContains")
    return int(schema.get("minContains", 1)), None if most is None else int(most)


def _ways(count: int) -> list[tuple[int, ...]]:
    """Places of so many items; from NUM_POSITIONS on only one way."""
    return list(islice(combinations(range(max(NUM_POSITIONS, count)), count), MAX_WAYS))


def _with(ways: tuple[int, ...], found: Schema, other: Schema) -> dict[str, Schema]:
    """Arrays with such items at these places; other: what all the other items are."""
    size = max(ways, default=-1) + 1
    items = [found if number in ways else other for number in range(size)]
    return {
        **({"prefixItems": items} if items else {}),
        "minItems": size,
        **({} if other is True else {"items": other}),
    }
