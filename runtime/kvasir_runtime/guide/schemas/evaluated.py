"""unevaluatedProperties and unevaluatedItems: what the other keywords of a schema evaluate, branch by branch.

Each branch of anyOf, oneOf, if and dependentSchemas that may hold is one case; a case says what must hold for it and
which names and items are then evaluated, so that the keyword becomes additionalProperties or items of that case. After
draft 2020-12, core, section 11. Pure; used by rewrite.py.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from kvasir_runtime.guide.schemas import unions
from kvasir_runtime.guide.schemas.resources import LocatedSchema, SchemaPlace
from kvasir_runtime.guide.schemas.terms import Terms
from kvasir_runtime.guide.schemas.unions import Schema, listed, mapping

MAX_CASES: Final = 64
MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True)
class EvaluatedCase:
    """needs: schemas that hold in it. names, patterns: of evaluated properties; size: of evaluated items from the first
    on; contains: schemas whose items are evaluated. all_properties, all_items: nothing is left."""

    needs: tuple[Schema, ...] = ()
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    all_properties: bool = False
    size: int = 0
    contains: tuple[Schema, ...] = ()
    all_items: bool = False

    def joined(self, other: "EvaluatedCase") -> "EvaluatedCase":
        """Both hold."""
        return EvaluatedCase(
            needs=(*self.needs, *other.needs),
            names=tuple(dict.fromkeys((*self.names, *other.names))),
            patterns=tuple(dict.fromkeys((*self.patterns, *other.patterns))),
            all_properties=self.all_properties or other.all_properties,
            size=max(self.size, other.size),
            contains=(*self.contains, *other.contains),
            all_items=self.all_items or other.all_items,
        )


def properties(terms: Terms, schema: Mapping[str, Schema], place: SchemaPlace) -> Schema:
    """unevaluatedProperties of a schema."""
    rest = terms.positive(schema["unevaluatedProperties"], place)

    def closed(case: EvaluatedCase) -> Schema:
        if case.all_properties:
            return {}
        known: dict[str, Schema] = {"properties": dict.fromkeys(case.names, True)} if case.names else {}
        if case.patterns:
            known["patternProperties"] = dict.fromkeys(case.patterns, True)
        return unions.guarded("object", [{**known, "additionalProperties": rest}])

    return _union(_within(_Cases(terms), schema, place), closed)


def items(terms: Terms, schema: Mapping[str, Schema], place: SchemaPlace) -> Schema:
    """unevaluatedItems of a schema."""
    rest = terms.positive(schema["unevaluatedItems"], place)

    def closed(case: EvaluatedCase) -> Schema:
        if case.all_items:
            return {}
        left = unions.any_of([rest, *case.contains])
        known: dict[str, Schema] = {"prefixItems": [True] * case.size} if case.size else {}
        return unions.guarded("array", [{**known, "items": left}])

    return _union(_within(_Cases(terms), schema, place), closed)


def _union(cases: Sequence[EvaluatedCase], closed: Callable[[EvaluatedCase], Schema]) -> Schema:
    return unions.any_of([unions.all_of([*case.needs, closed(case)]) for case in cases])


def _within(cases: "_Cases", schema: Mapping[str, Schema], place: SchemaPlace) -> list[EvaluatedCase]:
    """The cases of the keywords beside the one that is asked for."""
    others = {key: one for key, one in schema.items() if key not in {"unevaluatedProperties", "unevaluatedItems"}}
    return cases.of(others, place)


class _Cases:
    """seen: references that are being followed, so that recursion ends."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._seen: set[tuple[int, SchemaPlace]] = set()

    def of(self, schema: Schema, place: SchemaPlace) -> list[EvaluatedCase]:
        """The cases in which a schema holds. The schema's own rules are written elsewhere."""
        if not isinstance(schema, Mapping):
            return [EvaluatedCase()]
        place = self._terms.resources.entered(schema, place)
        found = [self._own(schema, place)]
        for choices in self._choices(schema, place):
            found = [one.joined(other) for one, other in product(found, choices)]
            if len(found) > MAX_CASES:
                raise unions.TooLarge("it is too large: unevaluated properties or items depend on too many branches")
        return found

    def _own(self, schema: Mapping[str, Schema], place: SchemaPlace) -> EvaluatedCase:
        contains = (self._terms.positive(schema["contains"], place),) if "contains" in schema else ()
        return EvaluatedCase(
            names=tuple(mapping(schema, "properties")),
            patterns=tuple(mapping(schema, "patternProperties")),
            all_properties="additionalProperties" in schema or "unevaluatedProperties" in schema,
            size=len(listed(schema, "prefixItems")),
            contains=contains,
            all_items="items" in schema or "unevaluatedItems" in schema,
        )

    def _choices(self, schema: Mapping[str, Schema], place: SchemaPlace) -> Iterator[list[EvaluatedCase]]:
        terms = self._terms
        for target in terms.targets(schema, place):
            yield self._of_target(target)
        for one in listed(schema, "allOf"):
            yield self.of(one, place)
        if options := listed(schema, "anyOf"):
            both = self._all(options, place) if len(options) == 2 else []
            yield [*(case for one in options for case in self._held(one, place)), *both]
        if options := listed(schema, "oneOf"):
            yield [case for one in options for case in self._held(one, place)]
        if "if" in schema:
            wrong = terms.negative(schema["if"], place)
            then = [
                one.joined(two)
                for one, two in product(self._held(schema["if"], place), self.of(schema.get("then"), place))
            ]
            yield [*then, *(replace(one, needs=(wrong, *one.needs)) for one in self.of(schema.get("else"), place))]
        for name, needed in mapping(schema, "dependentSchemas").items():
            missing = EvaluatedCase(needs=(unions.guarded("object", [{"properties": {name: False}}]),))
            here = {"type": "object", "required": [name]}
            yield [missing, *(replace(one, needs=(here, *one.needs)) for one in self.of(needed, place))]

    def _held(self, schema: Schema, place: SchemaPlace) -> list[EvaluatedCase]:
        """The cases of a branch, in each of which the branch itself holds."""
        rule = self._terms.positive(schema, place)
        return [replace(one, needs=(rule, *one.needs)) for one in self.of(schema, place)]

    def _all(self, options: Sequence[Schema], place: SchemaPlace) -> list[EvaluatedCase]:
        found = [EvaluatedCase()]
        for one in options:
            found = [before.joined(case) for before, case in product(found, self._held(one, place))]
        return found

    def _of_target(self, target: LocatedSchema) -> list[EvaluatedCase]:
        key = (id(target.schema), target.place)
        if key in self._seen or len(self._seen) > MAX_DEPTH:
            return [EvaluatedCase()]
        self._seen.add(key)
        try:
            return self.of(target.schema, target.place)
        finally:
            self._seen.discard(key)
