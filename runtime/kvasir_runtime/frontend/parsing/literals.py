"""Values that models write otherwise than as JSON: Python's literals, and texts whose type only the schema knows.

Used by the slots of formats. Pure.
"""

import ast
import json
import math
import warnings
from collections.abc import Collection, Mapping
from typing import Any, Final

from pydantic_core import from_json

from kvasir_runtime.frontend.parsing.char_machines import MAX_DEPTH, NoCall, Put, Steps

MAX_PYTHON: Final = 1 << 20
CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
WORDS: Final = {"true": True, "false": False, "null": None}
KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def escaped(text: str) -> str:
    """As it stands inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def types(schema: Any, root: Mapping[str, Any] = {}, depth: int = 0) -> set[str]:
    """The JSON types that a schema names; {"string"} where it names none, as a text is what was written.

    root: where its references lead.
    """
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return {"string"}
    if isinstance(schema.get("$ref"), str):
        return types(_referred(root, schema["$ref"]), root, depth + 1)
    named = schema.get("type")
    found = {named} if isinstance(named, str) else {kind for kind in named or () if isinstance(kind, str)}
    for combination in ("anyOf", "oneOf"):
        for other in schema.get(combination) or ():
            found |= types(other, root, depth + 1) if isinstance(other, Mapping) else set()
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if not found and isinstance(values, list):
        found = {kind for value in values for kind in [_kind(value)] if kind}
    return found or {"string"}


def _referred(root: Mapping[str, Any], reference: str) -> Any:
    found: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def typed(text: str, wanted: Collection[str]) -> str:
    """A text as JSON of one of the wanted types, or as a string where it cannot be."""
    for read in (_from_json, from_python):
        try:
            value = json.loads(read(text.strip()))
        except (NoCall, ValueError, RecursionError):
            continue
        if _kind(value) in wanted or (_kind(value) == "integer" and "number" in wanted):
            return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.dumps(text, ensure_ascii=False)


def is_begun_json(text: str) -> bool:
    """Whether a text ends within a string of JSON that is right so far, so that an end behind it is part of it."""
    try:
        from_json(text)
    except ValueError as error:
        return str(error).startswith("EOF while parsing a string")
    return False


def python(put: Put) -> Steps:
    """The text of a Python literal up to the comma or parenthesis after it, which is returned."""
    text: list[str] = []
    closing: list[str] = []
    while True:
        c = yield
        if not closing and c in {",", ")"}:
            put("".join(text))
            return c
        text.append(c)
        if len(text) > MAX_PYTHON or len(closing) > MAX_DEPTH:
            raise NoCall
        if c in CLOSING:
            closing.append(CLOSING[c])
        elif c in {")", "]", "}"}:
            if closing.pop() != c:
                raise NoCall
        elif c in {"'", '"'}:
            yield from _quoted(c, text)


def _quoted(quote: str, text: list[str]) -> Steps:
    while True:
        c = yield
        text.append(c)
        if len(text) > MAX_PYTHON:
            raise NoCall
        if c == quote:
            return ""
        if c == "\\":
            text.append((yield))


def from_python(text: str) -> str:
    """A Python literal as JSON; the words of JSON are understood too. Raises NoCall."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown escapes stay as they are
            tree = ast.parse(text.strip(), mode="eval")
        return json.dumps(_evaluated(tree.body), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise NoCall from error


def _evaluated(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.List(elts) | ast.Tuple(elts):
            return [_evaluated(element) for element in elts]
        case ast.Dict(keys, values):
            return {_word(key): _evaluated(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(ast.USub(), ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id) if id in WORDS:
            return WORDS[id]
    raise NoCall


def _word(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise NoCall


def _from_json(text: str) -> str:
    return text


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return next((name for name, kind in KINDS.items() if isinstance(value, kind)), "")
