"""Grammars of JSON texts from schemas, with our default for white space."""

import json
from typing import Any, Final

from kvasir_runtime.guide.errors import GrammarError

WHITESPACE: Final = r"[ \t\n\r]{1,32}"
"""Between the parts of a JSON text by default. Bounded, as small models may write blanks without end."""


def of_schema(schema: Any) -> str:
    """A JSON text that a schema describes, as llguidance's list of grammars."""
    return json.dumps({"grammars": [{"json_schema": with_whitespace(schema)}]}, ensure_ascii=False)


def with_whitespace(schema: Any) -> Any:
    """The schema with our default for blanks; what it says itself in x-guidance wins. Raises GrammarError."""
    if isinstance(schema, bool):
        schema = {"x-guidance": {}} if schema else {"enum": []}
    if not isinstance(schema, dict):
        raise GrammarError("a schema must be an object or a boolean")
    own = schema.get("x-guidance", {})
    if not isinstance(own, dict):
        raise GrammarError("x-guidance must be an object")
    if {"whitespace_pattern", "whitespace_flexible"} & own.keys():
        return schema
    return {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE, **own}}


def captured(schema: Any, name: str) -> str:
    """The same as a Lark grammar that captures the text under a name."""
    text = json.dumps(with_whitespace(schema), ensure_ascii=False)
    return f'%llguidance {{}}\nstart: {name}\n{name}[capture="{name}"]: %json {text}'
