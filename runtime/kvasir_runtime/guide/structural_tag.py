"""Builds structural tags: the forms that an answer may have, as JSON in XGrammar's newer shape.

Used by the frontend for tools, reasoning and structured outputs; lark.py turns the result into Lark. Light: the API
process imports it, and nothing here loads llguidance.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from kvasir_runtime.wire import Grammar

Form = dict[str, Any]
ANY_TEXT: Final[Form] = {"type": "any_text"}
ANY_OBJECT: Final = {"type": "object"}
"""The JSON schema of any object."""


def text(value: str) -> Form:
    """Exactly this text."""
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> Form:
    """What a pattern matches."""
    return {"type": "regex", "pattern": pattern}


def json_schema(schema: Any) -> Form:
    """A JSON text that fits a schema."""
    return {"type": "json_schema", "json_schema": schema}


def tag(begin: str, content: Form, end: str) -> Form:
    """A form between two texts; any text ends with the first end."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Form) -> Form:
    """One form after the other."""
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def either(elements: Sequence[Form]) -> Form:
    """One of several forms."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def separated(tags: Sequence[Form], separator: str, *, single: bool) -> Form:
    """One tag or more, with a text between them; single: exactly one."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def optional(one: Form) -> Form:
    """A tag or nothing."""
    return {"type": "tags_with_separator", "tags": [one], "separator": "", "stop_after_first": True}


def triggered(triggers: Sequence[str], tags: Sequence[Form], *, single: bool) -> Form:
    """Any text; behind a trigger, one of the tags that begin with it. single: the first tag ends the answer."""
    form: Form = {"type": "triggered_tags", "triggers": list(triggers), "tags": list(tags)}
    return {**form, "stop_after_first": True} if single else form


def grammar(form: Form, *, after: str = "") -> Grammar:
    """The grammar of a form. after: the text behind which it begins to hold."""
    return Grammar(kind="structural_tag", text=json.dumps({"format": form}, ensure_ascii=False), after=after)


def form_of(requested: Grammar) -> Form:
    """A grammar as a part of a structural tag."""
    match requested.kind:
        case "json_schema":
            return json_schema(json.loads(requested.text))
        case "json_object":
            return json_schema(ANY_OBJECT)
        case "regex":
            return regex(requested.text)
        case "choice":
            return either([text(choice) for choice in json.loads(requested.text)])
        case "lark":
            return {"type": "grammar", "grammar": requested.text}
        case "structural_tag":
            document: Form = json.loads(requested.text)
            return {"type": "structural_tag", **document}
