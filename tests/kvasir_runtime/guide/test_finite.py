"""Schemas whose texts would have no end are found, and no others."""

import pytest

from kvasir_runtime.guide.finite import has_finite_text

SELF = {"$ref": "#"}
LIST = {"type": "array", "items": SELF}


@pytest.mark.parametrize(
    ("schema", "finite"),
    [
        (True, True),
        ({}, True),
        (SELF, False),
        ({"type": "object", "properties": {"a": SELF}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": SELF}}, True),
        ({"type": "object", "properties": {"a": SELF}, "required": ["b"]}, True),
        ({"properties": {"a": SELF}, "required": ["a"]}, True),
        ({"type": ["object", "null"], "properties": {"a": SELF}, "required": ["a"]}, True),
        ({"type": "object", "properties": {"a": {"anyOf": [SELF, {"type": "null"}]}}, "required": ["a"]}, True),
        ({"type": "object", "properties": {"a": {"oneOf": [SELF, SELF]}}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": {"allOf": [{}, SELF]}}, "required": ["a"]}, False),
        (LIST, True),
        ({**LIST, "minItems": 1}, False),
        ({**LIST, "minItems": 1, "prefixItems": [{}]}, True),
        ({**LIST, "minItems": 2, "prefixItems": [{}]}, False),
        ({"type": "array", "prefixItems": [SELF], "minItems": 1}, False),
        ({"const": 1, "$ref": "#"}, True),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {
                    "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
                    "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1},
                },
            },
            False,
        ),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {
                    "a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/b"}, "minItems": 1}]},
                    "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/c~1d"}]},
                    "c/d": {"type": "null"},
                },
            },
            True,
        ),
        ({"$ref": "https://example.com/x"}, True),
        ({"$ref": "#/nowhere"}, True),
        ({"type": 5, "required": "a", "minItems": "b", "anyOf": []}, True),
    ],
)
def test_recursion(schema, finite):
    assert has_finite_text(schema) == finite
