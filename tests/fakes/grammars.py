"""Grammars whose answers are bounded, each with what tells whether an answer is right; and schemas by keyword."""

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema

from kvasir_runtime.wire import Grammar

Check = Callable[[str], bool]

SHORT = {"type": "string", "maxLength": 6}
SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
KEYWORDS: dict[str, list[Any]] = {
    "type": [
        {"type": "null"},
        {"type": "boolean"},
        SMALL,
        SHORT,
        {"type": ["boolean", "null"]},
        {"type": "number", "minimum": -1, "maximum": 1},
        {"type": "array", "maxItems": 2, "items": SMALL},
        {"type": "object", "properties": {"a": SMALL}, "additionalProperties": False},
    ],
    "enum": [{"enum": ["red", "green", 3, None, True, {"a": [1]}]}, {"type": "string", "enum": ["é\n", '"q"', ""]}],
    "const": [{"const": "x y"}, {"const": {"k": [1, {"z": None}]}}, {"const": 0}],
    "anyOf": [{"anyOf": [{"type": "null"}, {"type": "boolean"}]}, {"anyOf": [{"const": "a"}, SMALL]}],
    "oneOf": [{"oneOf": [{"type": "null"}, {"type": "boolean"}]}, {"oneOf": [{"const": "a"}, {"const": "b"}]}],
    "allOf": [
        {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 7}]},
        {
            "allOf": [
                {"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
                {"properties": {"b": {"type": "boolean"}}, "required": ["b"], "additionalProperties": True},
            ],
            "maxProperties": 2,
        },
    ],
    "$ref": [
        {"$ref": "#/$defs/flag", "$defs": {"flag": {"type": "boolean"}}},
        {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        },
        {"$ref": "#/definitions/n", "definitions": {"n": SMALL}},
    ],
    "properties": [
        {
            "type": "object",
            "properties": {"first": SHORT, "second": SMALL},
            "required": ["first"],
            "additionalProperties": False,
        }
    ],
    "required": [
        {
            "type": "object",
            "properties": {"a": SMALL, "b": {"type": "boolean"}, "c": {"type": "null"}},
            "required": ["c", "a"],
            "additionalProperties": False,
        }
    ],
    "additionalProperties": [
        {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2},
        {"type": "object", "properties": {"a": SMALL}, "required": ["a"], "additionalProperties": False},
    ],
    "patternProperties": [
        {
            "type": "object",
            "patternProperties": {"^n_[a-c]{1,2}$": SMALL, "^s_[a-c]$": {"type": "boolean"}},
            "additionalProperties": False,
            "maxProperties": 2,
        }
    ],
    "minProperties": [
        {
            "type": "object",
            "additionalProperties": {"type": "null"},
            "patternProperties": {},
            "minProperties": 1,
            "maxProperties": 2,
        }
    ],
    "maxProperties": [{"type": "object", "additionalProperties": SMALL, "maxProperties": 1}],
    "items": [
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        {"type": "array", "items": {"anyOf": [{"const": "a"}, {"type": "null"}]}, "maxItems": 3},
    ],
    "prefixItems": [
        {
            "type": "array",
            "prefixItems": [SMALL, {"type": "boolean"}],
            "items": False,
            "minItems": 2,
        },
        {"type": "array", "prefixItems": [{"const": "a"}], "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
    ],
    "minItems": [{"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 4}],
    "maxItems": [{"type": "array", "items": SMALL, "maxItems": 1}],
    "minLength": [{"type": "string", "minLength": 3, "maxLength": 5}],
    "maxLength": [{"type": "string", "maxLength": 2}],
    "pattern": [
        {"type": "string", "pattern": "^[a-f]{2}-[0-9]{1,3}$"},
        {"type": "string", "pattern": "^(cat|dog)s?$"},
        {"type": "string", "pattern": "b", "maxLength": 4},
        {"type": "string", "pattern": '^"\\\\[xyz]$'},
    ],
    "format": [
        {"type": "string", "format": name} for name in ("date-time", "time", "date", "duration", "ipv4", "ipv6", "uuid")
    ]
    + [{"type": "string", "format": name, "maxLength": 24} for name in ("email", "hostname", "uri")],
    "minimum": [{"type": "integer", "minimum": 7, "maximum": 112}, {"type": "number", "minimum": 0.5, "maximum": 2.25}],
    "maximum": [{"type": "integer", "minimum": -15, "maximum": -3}],
    "exclusiveMinimum": [{"type": "integer", "exclusiveMinimum": 0, "maximum": 3}],
    "exclusiveMaximum": [{"type": "number", "minimum": 0, "exclusiveMaximum": 1}],
    "multipleOf": [
        {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 500},
        {"type": "integer", "multipleOf": 5, "minimum": -50, "maximum": 50},
    ],
    "annotations": [
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://example.com/x",
            "$comment": "c",
            "title": "t",
            "description": "d",
            "default": 1,
            "examples": [1],
            "readOnly": True,
            "type": "boolean",
        }
    ],
    "nesting": [
        {
            "type": "object",
            "properties": {
                "person": {
                    "type": "object",
                    "properties": {"name": SHORT, "tags": {"type": "array", "items": {"enum": [1]}, "maxItems": 1}},
                    "required": ["name", "tags"],
                    "additionalProperties": False,
                },
                "active": {"type": "boolean"},
            },
            "required": ["person", "active"],
            "additionalProperties": False,
        }
    ],
}
"""Schemas by the keyword that they are about; every keyword that llguidance's documentation lists is here."""

COMPILED: dict[str, list[Any]] = {
    "not": [{**SHORT, "not": {"const": "a"}}, {"type": ["boolean", "null"], "not": {"const": True}}],
    "oneOf": [{"oneOf": [SMALL, {"type": "integer", "minimum": 50, "maximum": 120}]}],
    "if": [{"type": ["string", "null"], "if": {"type": "string"}, "then": {"maxLength": 2}}],
    "contains": [
        {"type": "array", "items": {"type": ["null", "boolean"]}, "contains": {"type": "null"}, "maxItems": 3},
        {"type": "array", "contains": {"type": "null"}, "minContains": 2, "maxContains": 2, "items": False,
         "prefixItems": [{}, {}, {}]},
    ],
    "propertyNames": [{"type": "object", "propertyNames": {"pattern": "^a[bc]$"}, "maxProperties": 2,
                       "additionalProperties": SMALL}],
    "dependentRequired": [{"type": "object", "properties": {"a": SMALL, "b": SMALL, "c": {"type": "null"}},
                           "additionalProperties": False, "dependentRequired": {"a": ["c"], "b": ["a"]}}],
    "dependentSchemas": [{"type": "object", "properties": {"a": SMALL, "b": {"type": ["null", "boolean"]}},
                          "additionalProperties": False,
                          "dependentSchemas": {"a": {"required": ["b"], "properties": {"b": {"type": "null"}}}}}],
    "unevaluatedProperties": [
        {"type": "object", "allOf": [{"properties": {"a": SMALL}, "required": ["a"]}], "unevaluatedProperties": False},
    ],
    "unevaluatedItems": [{"type": "array", "allOf": [{"prefixItems": [SMALL]}], "unevaluatedItems": False}],
    "$dynamicRef": [
        {"$dynamicAnchor": "node", "type": "object", "properties": {"next": {"$dynamicRef": "#node"}},
         "additionalProperties": False},
    ],
    "$anchor": [{"$ref": "#n", "$defs": {"number": {"$anchor": "n", **SMALL}}}],
    "unknown": [{"type": "string", "format": "iri", "maxLength": 3.0, "x-order": 1}],
}  # fmt: skip
"""Schemas that llguidance does not compile as they are."""
CHECKED: dict[str, list[Any]] = {
    "uniqueItems": [
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
        {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 2},
        {"type": "object", "properties": {"x": {"type": "array", "items": SMALL, "uniqueItems": True, "maxItems": 4},
         "y": {"type": "boolean"}}, "required": ["x", "y"], "additionalProperties": False},
    ],
    "patternProperties": [{"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}},
                           "additionalProperties": False, "maxProperties": 2}],
    "minProperties": [{"type": "object", "properties": {"a": SMALL, "b": SMALL}, "additionalProperties": False,
                       "minProperties": 1}, {"type": "object", "additionalProperties": SMALL, "minProperties": 2}],
}  # fmt: skip
"""Schemas of which some keyword is checked while the answer is written."""


def schema_check(schema: Any) -> Check:
    """Whether a text is JSON that a schema describes, formats included as far as jsonschema knows them."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)

    def check(text: str) -> bool:
        # The library's dates have a 29th of February in every year.
        return bool(validator.is_valid(json.loads(re.sub(r"\d{4}-02-29", "2000-02-29", text))))

    return check


def of_schema(schema: Any) -> Grammar:
    return Grammar(kind="json_schema", text=json.dumps(schema))


def tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def of_tags(form: dict[str, Any]) -> Grammar:
    return Grammar(kind="structural_tag", text=json.dumps({"format": form}))


NUMBER = {"type": "regex", "pattern": "[0-9]{1,3}"}
CALL = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"x": SMALL}, "required": ["x"],
        "additionalProperties": False}}  # fmt: skip
OTHERS: dict[str, tuple[Grammar, str]] = {
    "digits": (Grammar(kind="regex", text=r"\d{3}-\d{2}"), r"\d{3}-\d{2}"),
    "anchored": (Grammar(kind="regex", text=r"^[ab]{2,4}$"), r"[ab]{2,4}"),
    "alternatives": (Grammar(kind="regex", text=r"(yes|no|may ?be){1,2}!"), r"(yes|no|may ?be){1,2}!"),
    "umlauts": (Grammar(kind="regex", text=r"[äöü]{1,3}"), r"[äöü]{1,3}"),
    "choice": (Grammar(kind="choice", text=json.dumps(["positive", "negative", 'it\'s "fine"\n'])), ""),
    "one choice": (Grammar(kind="choice", text='["the operator watches the services"]'), ""),
    "lark": (Grammar(kind="lark", text='start: greeting " " NAME\ngreeting: "hi" | "hello"\nNAME: /[A-Z][a-z]{1,4}/'),
             r"(hi|hello) [A-Z][a-z]{1,4}"),
    "lark nests": (Grammar(kind="lark", text='start: e2\ne2: "(" e1 ")" | "x"\ne1: "[" e0 "]" | "y"\ne0: "z"'),
                   r"x|\(y\)|\(\[z\]\)"),
    "gbnf": (Grammar(kind="lark", text='root ::= ("a" | "b") digit digit?\ndigit ::= [0-9]'), r"[ab][0-9]{1,2}"),
    "tag": (of_tags(tag("<n>", NUMBER, "</n>")), r"<n>[0-9]{1,3}</n>"),
    "tags": (of_tags({"type": "tags_with_separator", "separator": ", ", "at_least_one": True, "stop_after_first": True,
             "tags": [tag("<f>", CALL, "</f>"), tag("<g>", NUMBER, "</g>")]}), r"(?s)<f>\{.*\}</f>|<g>[0-9]{1,3}</g>"),
    "sequence": (of_tags({"type": "sequence", "elements": [{"type": "const_string", "value": "n="}, NUMBER,
                 {"type": "or", "elements": [{"type": "const_string", "value": "!"},
                  {"type": "grammar", "grammar": 'start: "?" "?"'}]}]}), r"n=[0-9]{1,3}(!|\?\?)"),
    "special": (of_tags(tag("<|im_start|>", NUMBER, "<|im_end|>")), r"<\|im_start\|>[0-9]{1,3}<\|im_end\|>"),
}  # fmt: skip


def other_check(name: str) -> Check:
    """Whether a text is one that OTHERS[name] allows."""
    grammar, pattern = OTHERS[name]
    if not pattern:
        return lambda text: text in json.loads(grammar.text)
    return lambda text: re.fullmatch(pattern, text) is not None


def all_of_them() -> dict[str, tuple[Grammar, Check]]:
    """Every grammar by a name."""
    made = {name: (grammar, other_check(name)) for name, (grammar, _) in OTHERS.items()}
    for kind, table in (("", KEYWORDS), ("compiled ", COMPILED), ("checked ", CHECKED)):
        for keyword, schemas in table.items():
            for number, schema in enumerate(schemas):
                made[f"{kind}{keyword} {number}"] = of_schema(schema), schema_check(schema)
    return made
