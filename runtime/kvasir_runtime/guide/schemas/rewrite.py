"""A JSON schema in the words that llguidance compiles: anyOf and allOf of types, bounds, properties, items, references.

llguidance knows none of not, oneOf whose cases overlap, if, dependent*, propertyNames, contains, unevaluated* and
$dynamicRef. Here each becomes a union of schemas without it; negative() is the complement of a schema by the laws of De
Morgan. What is made allows nothing that the schema forbids, except for the keywords in `loose`: these are left out, and
what is written under them has to be checked (guide/checker.py). It may allow less, as where an array must contain an
item of a kind only its first NUM_POSITIONS are tried. Pure; used by guide/grammars.py.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kvasir_runtime.guide.schemas import complement, contained, evaluated, overlap, strings
from kvasir_runtime.guide.schemas.resources import LocatedSchema, SchemaPlace, SchemaResources
from kvasir_runtime.guide.schemas.unions import Schema, TooLarge, all_of, any_of, dependencies, guarded, listed, mapping

FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
"""Formats that are enforced; the others are annotations."""
KEPT: Final = ("type", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
EXACT: Final = 2**53
"""The largest bound that llguidance always compiles."""
MAX_DEFINITIONS: Final = 2048
MAX_PARTS: Final = 20_000


class Rewriter:
    """loose: keywords that were left out. relaxed: those to leave out, since llguidance refused them."""

    def __init__(self, schema: Schema, relaxed: Collection[str] = ()) -> None:
        self.loose: set[str] = set()
        self.resources = SchemaResources(schema)
        self._relaxed = frozenset(relaxed)
        self._names: dict[tuple[int, SchemaPlace, bool], str] = {}
        self._definitions: dict[str, Schema] = {}
        self._parts = 0

    def document(self) -> Schema:
        """The whole schema, rewritten. Raises GrammarError."""
        start = self.resources.start
        root = self.positive(start.schema, start.place)
        definitions = {name: made for name, made in self._definitions.items() if not isinstance(made, bool)}
        return {**root, "$defs": definitions} if isinstance(root, dict) else root

    def positive(self, schema: Schema, place: SchemaPlace) -> Schema:
        """What a schema allows."""
        if not isinstance(schema, dict):
            return schema
        place = self._counted(schema, place)
        schema = self._without_relaxed(schema)
        flat = {keyword: schema[keyword] for keyword in KEPT if keyword in schema}
        flat |= {keyword: _count(schema[keyword]) for keyword in COUNTS if keyword in schema}
        if isinstance(required := schema.get("required"), list) and required:
            flat["required"] = required
        self._texts(schema, flat)
        self._objects(schema, place, flat)
        self._arrays(schema, place, flat)
        parts = self._applied(schema, place)
        if schema.get("uniqueItems") is True and flat.get("maxItems", 2) > 1:
            self.loose.add("uniqueItems")
        return all_of([flat, *parts])

    def negative(self, schema: Schema, place: SchemaPlace) -> Schema:
        """What a schema forbids, or less."""
        if isinstance(schema, bool):
            return not schema
        return complement.of(self, schema, self._counted(schema, place))

    def reference(self, target: LocatedSchema, *, positive: bool) -> Schema:
        """A reference to the definition of a schema, or of its complement, at that place; it is made at first use."""
        key = (id(target.schema), target.place, positive)
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= MAX_DEFINITIONS:
                raise TooLarge("it is too large: its references lead to too many different schemas")
            name = self._names[key] = f"d{len(self._names)}"
            write = self.positive if positive else self.negative
            self._definitions[name] = write(target.schema, target.place)
        made = self._definitions.get(name)
        return made if isinstance(made, bool) else {"$ref": f"#/$defs/{name}"}

    def targets(self, schema: Mapping[str, Schema], place: SchemaPlace) -> list[LocatedSchema]:
        """Where the references of a schema lead."""
        found = []
        if isinstance(reference := schema.get("$ref"), str):
            found.append(self.resources.referred(reference, place))
        if isinstance(reference := schema.get("$dynamicRef"), str):
            found.append(self.resources.dynamically_referred(reference, place))
        return found

    def _counted(self, schema: Schema, place: SchemaPlace) -> SchemaPlace:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooLarge("it is too large: its combinations are too many")
        return self.resources.entered(schema, place)

    def _without_relaxed(self, schema: Mapping[str, Schema]) -> Mapping[str, Schema]:
        left = {keyword for keyword in self._relaxed & schema.keys() if _leaves(keyword, schema[keyword])}
        self.loose |= left
        if "oneOf" in left and "anyOf" not in schema:
            schema = {**schema, "anyOf": schema["oneOf"]}
        return {keyword: value for keyword, value in schema.items() if keyword not in left}

    def _texts(self, schema: Mapping[str, Schema], flat: dict[str, Schema]) -> None:
        if "pattern" in schema:
            flat["pattern"] = schema["pattern"]
        if schema.get("format") in FORMATS:
            flat["format"] = schema["format"]

    def _objects(self, schema: Mapping[str, Schema], place: SchemaPlace, flat: dict[str, Schema]) -> None:
        """Named properties also get what the patterns ask of their names."""
        named, patterns = mapping(schema, "properties"), mapping(schema, "patternProperties")
        by_pattern = {pattern: self.positive(one, place) for pattern, one in patterns.items()}
        properties = {
            name: all_of(
                [
                    self.positive(one, place),
                    *(by_pattern[pattern] for pattern in patterns if strings.matches(pattern, name)),
                ]
            )
            for name, one in named.items()
        }
        if properties:
            flat["properties"] = properties
        if by_pattern and "patternProperties" in self._relaxed:
            self.loose.add("patternProperties")
            flat["patternProperties"] = {"|".join(f"({pattern})" for pattern in patterns): True}
        elif by_pattern:
            flat["patternProperties"] = by_pattern
        if "additionalProperties" in schema:
            flat["additionalProperties"] = self.positive(schema["additionalProperties"], place)
        if flat.get("minProperties", 0) > 1:
            self.loose.add("minProperties")  # llguidance counts a name that is written twice as two

    def _arrays(self, schema: Mapping[str, Schema], place: SchemaPlace, flat: dict[str, Schema]) -> None:
        if isinstance(prefix := schema.get("prefixItems"), list) and prefix:
            flat["prefixItems"] = [self.positive(one, place) for one in prefix]
        if "items" in schema:
            flat["items"] = self.positive(schema["items"], place)

    def _applied(self, schema: Mapping[str, Schema], place: SchemaPlace) -> list[Schema]:
        """One schema for each of the other keywords, all of which must hold."""
        parts = [self.reference(target, positive=True) for target in self.targets(schema, place)]
        parts += [self.positive(one, place) for one in listed(schema, "allOf")]
        if options := listed(schema, "anyOf"):
            parts.append(any_of([self.positive(one, place) for one in options]))
        if options := listed(schema, "oneOf"):
            parts.append(self._one_of(options, place))
        if "not" in schema:
            parts.append(self.negative(schema["not"], place))
        if "if" in schema:
            parts += self._conditional(schema, place)
        for name, needed in dependencies(schema):
            here = {"type": "object", "required": [name]}
            more: Schema = {"required": needed} if isinstance(needed, list) else self.positive(needed, place)
            parts.append(guarded("object", [{"properties": {name: False}}, all_of([here, more])]))
        if "propertyNames" in schema:
            parts += self._names_of(schema)
        if "contains" in schema:
            parts.append(contained.positive(self, schema, place))
        if "unevaluatedProperties" in schema and schema["unevaluatedProperties"] is not True:
            parts.append(evaluated.properties(self, schema, place))
        if "unevaluatedItems" in schema and schema["unevaluatedItems"] is not True:
            parts.append(evaluated.items(self, schema, place))
        return parts

    def _one_of(self, options: Sequence[Schema], place: SchemaPlace) -> Schema:
        """Each of the options without those of the others that may overlap with it."""
        found = []
        for number, option in enumerate(options):
            others = [one for place_of, one in enumerate(options) if place_of != number]
            apart = [one for one in others if not overlap.disjoint(self, (option, place), (one, place))]
            found.append(all_of([self.positive(option, place), *(self.negative(one, place) for one in apart)]))
        return any_of(found)

    def _conditional(self, schema: Mapping[str, Schema], place: SchemaPlace) -> list[Schema]:
        if "then" not in schema and "else" not in schema:
            return []
        test = schema["if"]
        then = all_of([self.positive(test, place), self.positive(schema.get("then", True), place)])
        otherwise = all_of([self.negative(test, place), self.positive(schema.get("else", True), place)])
        return [any_of([then, otherwise])]

    def _names_of(self, schema: Mapping[str, Schema]) -> list[Schema]:
        """propertyNames: a pattern for all names where there is a simple one."""
        allowed = schema["propertyNames"]
        if allowed is True or allowed == {}:
            return []
        if allowed is False:
            return [guarded("object", [{"additionalProperties": False}])]
        pattern = strings.names(allowed)
        if pattern is None or "propertyNames" in self._relaxed:
            self.loose.add("propertyNames")
            return []
        known = {name: strings.matches(pattern, name) for name in mapping(schema, "properties")}
        return [
            guarded(
                "object",
                [{"properties": known, "patternProperties": {pattern: True}, "additionalProperties": False}],
            )
        ]


def _count(value: Schema) -> Schema:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _leaves(keyword: str, value: Schema) -> bool:
    """Whether a relaxed keyword is left out whole: patterns keep their names, and bounds are too large or stay."""
    if keyword in {"patternProperties", "propertyNames"}:
        return False
    return keyword not in BOUNDS or not isinstance(value, int | float) or abs(value) > EXACT
