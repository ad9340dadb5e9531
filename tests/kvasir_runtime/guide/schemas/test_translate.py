"""Schemas that llguidance does not compile: every instance is accepted or rejected as a validator of the field does."""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.schemas import json_grammar, translate

ARRAY = {"type": "array"}
VALUES = [
    None,
    True,
    False,
    0,
    1,
    2,
    1.5,
    "",
    "a",
    "ab",
    "abc",
    [],
    [0],
    [1],
    ["a"],
    [0, 0],
    [0, 1],
    [1, 0, "a"],
    ["a", "a", 1],
    {},
    {"a": 0},
    {"a": "x"},
    {"b": 0},
    {"a": 0, "b": 0},
    {"a": 0, "b": 0, "c": 0},
    {"abc": 1},
    {"a": {"a": 1}},
]
SCHEMAS = {
    "not": [
        {"not": {"type": "string"}},
        {"not": {"const": "a"}},
        {"not": {"enum": [1, "a", None, [0], {"a": 0}]}},
        {"not": {"minimum": 1}},
        {"not": {"required": ["a"]}},
        {"not": {"properties": {"a": {"type": "integer"}}}},
        {"not": {"items": {"type": "integer"}}},
        {"not": {"not": {"type": ["array", "null"]}}},
        {"not": {"prefixItems": [{"const": 0}]}},
        {"not": {"anyOf": [{"type": "object"}, {"maxLength": 1}]}},
        {"not": {"allOf": [{"type": "object"}, {"required": ["a"]}]}},
        {"not": {"contains": {"const": "a"}}},
        {"type": "string", "not": {"minLength": 2}},
        {"not": {"if": {"type": "string"}, "then": {"minLength": 2}}},
        {"not": {"dependentRequired": {"a": ["b"]}}},
        {"not": {"maxItems": 1}},
    ],
    "oneOf": [
        {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"maxLength": 1}, {"minLength": 1}]},
        {"oneOf": [ARRAY, {"minItems": 1}, {"type": "null"}]},
    ],
    "if": [
        {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "array"}},
        {"if": {"minimum": 1}, "then": False},
        {"if": {"properties": {"a": {"const": 0}}, "required": ["a"]}, "then": {"required": ["b"]}},
    ],
    "contains": [
        {"contains": {"const": 0}},
        {"contains": {"type": "string"}, "minContains": 2},
        {"contains": {"const": 0}, "maxContains": 1},
        {"contains": {"const": 0}, "minContains": 0, "maxContains": 1},
    ],
    "propertyNames": [
        {"propertyNames": {"maxLength": 1}},
        {"propertyNames": {"enum": ["a"]}},
        {"propertyNames": False},
        {"propertyNames": {"pattern": "^[ab]"}, "properties": {"abc": True}},
    ],
    "dependent": [{"dependentRequired": {"a": ["b"]}}, {"dependentSchemas": {"a": {"required": ["b"]}}}],
    "unevaluated": [
        {"properties": {"a": True}, "unevaluatedProperties": False},
        {"anyOf": [{"properties": {"a": True}}, {"properties": {"b": True}}], "unevaluatedProperties": False},
        {"if": {"required": ["a"]}, "then": {"properties": {"a": True}}, "unevaluatedProperties": {"const": 0}},
        {"prefixItems": [True], "unevaluatedItems": {"const": 1}},
        {"contains": {"const": 0}, "unevaluatedItems": False},
    ],
    "uniqueItems": [{"uniqueItems": True}, {"uniqueItems": True, "prefixItems": [True, True], "items": False}],
    "references": [
        {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "array", "items": {"$ref": "#here"}}}},
        {"$id": "https://example.com/a", "$ref": "b", "$defs": {"x": {"$id": "b", "not": {"type": "string"}}}},
        {"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": {"minLength": 1}}},
        {"not": {"$ref": "#/$defs/a"}, "$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "type": ["array", "number"]}}},
    ],
    "patternProperties": [
        {"patternProperties": {"^a": {"type": "integer"}, "b": {"const": 0}}},
        {"properties": {"a": {"minimum": 0}}, "patternProperties": {"a": {"type": "integer"}}},
    ],
    "counts": [
        {"minProperties": 2, "properties": {"a": True}},
        {"maxProperties": 1.0, "properties": {"a": True, "b": True}},
        {"minLength": 2.0},
        {"maxItems": 1.0},
        {"not": {"maxProperties": 1}},
    ],
    "annotations": [{"type": "string", "format": "iri"}, {"format": "regex", "x-ours": 1}, {"unknown": {"not": True}}],
}
CASES = [(name, schema) for name, schemas in SCHEMAS.items() for schema in schemas]


def accepts(made, text):
    matcher = translate.byte_matcher(json_grammar.of_schema(made.schema))
    return matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting()


@pytest.mark.parametrize(("name", "schema"), CASES)
def test_the_grammar_accepts_what_the_schema_allows(name, schema):
    """Exactly that, but for what is left to the check."""
    made = translate.translated(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        valid, text = validator.is_valid(value), json.dumps(value).encode()
        if valid or not made.loose:
            assert accepts(made, text) == valid, value
    if name in {"annotations", "not", "oneOf", "if", "contains", "dependent", "unevaluated", "references"}:
        assert made.loose == frozenset(), "compiled"


LEAVES = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "string"},
        {"const": 0},
        {"enum": ["a", 1]},
        {"minimum": 1},
        {"maxLength": 1},
        True,
        False,
    ]
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda one: {"not": one}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"oneOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
        st.builds(lambda a, b, c: {"if": a, "then": b, "else": c}, inner, inner, inner),
        st.builds(lambda one: {"properties": {"a": one}}, inner),
        st.builds(lambda one: {"properties": {"a": one}, "required": ["a"], "additionalProperties": False}, inner),
        st.builds(lambda one: {"items": one}, inner),
        st.builds(lambda one: {"contains": one}, inner),
        st.builds(lambda one: {"dependentSchemas": {"a": one}}, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(NESTED)
def test_no_instance_is_accepted_that_the_schema_forbids(schema):
    """Of any nesting; what is left to the check may be more."""
    try:
        made = translate.translated(schema)
    except GrammarError:
        return
    validator = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        if not made.loose and accepts(made, json.dumps(value).encode()):
            assert validator.is_valid(value), value


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "https://example.com/x", "not": {}}, "leads out of the schema"),
        ({"not": {}}, "nsatisfiable"),
        ({"oneOf": [True, True]}, "nsatisfiable"),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object", "not": {"const": 1}}, "no end"),
    ],
)
def test_what_has_no_text_is_refused(schema, reason):
    with pytest.raises(GrammarError, match=reason):
        translate.translated(schema)


def test_the_dependencies_of_older_drafts_are_enforced():
    made = translate.translated({"type": "object", "dependencies": {"a": ["b"]}})
    assert [accepts(made, text) for text in (b'{"b": 1}', b'{"a": 1}', b'{"a": 1, "b": 1}')] == [True, False, True]


def test_what_grows_too_large_is_left_to_the_check():
    """Ten options that overlap: their complements multiply."""
    options = [{"type": "object", "properties": {f"p{n}{m}": {"type": "integer"} for m in range(6)}} for n in range(10)]
    made = translate.translated({"oneOf": options})
    assert made.loose == {"oneOf"}


def test_switches_of_the_library_stay():
    made = translate.translated({"not": {"type": "string"}, "x-guidance": {"whitespace_flexible": False}})
    assert made.schema["x-guidance"] == {"whitespace_flexible": False}
