"""Fields that ask for an answer of a certain form: their types, checked by hand, as unions give unreadable errors.

Used by the bodies' models. Names and meanings are OpenAI's (response_format) and vLLM's (the others). What a schema or
a pattern means is not checked here.
"""

import json
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError

MAX_CHOICES: Final = 16_384
MAX_CHARACTERS: Final = 512 * 1024
BACKENDS: Final = ("auto", "guidance", "llguidance")
BACKEND_OPTIONS: Final = ("no-fallback", "disable-any-whitespace", "no-additional-properties")
FORMS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
SWITCHES: Final = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")
FORMAT_TYPES: Final = ("text", "json_object", "json_schema", "structural_tag")


def _schema(value: Any) -> Any:
    """An object, a boolean, JSON text of one, or in Python a model of pydantic's."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        value = value.model_json_schema()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise PydanticCustomError("schema", "must be a JSON schema: the text is not valid JSON") from error
    if not isinstance(value, dict | bool):
        raise PydanticCustomError("schema", "must be a JSON schema, which is an object or a boolean")
    return value


def _choices(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(choice, str) for choice in value):
        raise PydanticCustomError("choices", "must be a non-empty list of strings")
    if len(value) > MAX_CHOICES:
        raise PydanticCustomError("choices", "holds {count} choices; at most {limit}", _counts(value))
    return value


def _counts(value: list[str]) -> dict[str, int]:
    return {"count": len(value), "limit": MAX_CHOICES}


def _tag(value: Any) -> dict[str, Any]:
    """A structural tag, an object or JSON text of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise PydanticCustomError("tag", "must be a structural tag: the text is not valid JSON") from error
    if not isinstance(value, dict):
        raise PydanticCustomError("tag", "must be an object with a format, or with structures and triggers")
    return value


def _backend(value: str) -> str:
    name, _, options = value.partition(":")
    if name not in BACKENDS or not {*options.split(",")} - {""} <= {*BACKEND_OPTIONS}:
        known = ", ".join(BACKENDS)
        raise PydanticCustomError("backend", "names a backend that is not here; there are {known}", {"known": known})
    return value


def _structured(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PydanticCustomError("structured", "must be an object")
    given = {name: item for name, item in value.items() if item is not None}
    if unknown := sorted({*given} - {*FORMS, *SWITCHES, "whitespace_pattern"}):
        raise PydanticCustomError("structured", "has an unknown field {name}", {"name": str(unknown[0])[:60]})
    checks = {"json": _schema, "choice": _choices, "structural_tag": _tag}
    for name, item in given.items():
        if name in checks:
            given[name] = checks[name](item)
        elif name in {*SWITCHES, "json_object"}:
            if not isinstance(item, bool):
                raise PydanticCustomError("structured", "must have a boolean {name}", {"name": name})
        elif not isinstance(item, str):
            raise PydanticCustomError("structured", "must have a string {name}", {"name": name})
    asked = [name for name in FORMS if given.get(name, False) is not False or (name == "json" and name in given)]
    if len(asked) > 1:
        raise PydanticCustomError(
            "structured", "requests {first} and {second}; one form is possible", {"first": asked[0], "second": asked[1]}
        )
    return given


def _format(value: Any) -> dict[str, Any]:
    """response_format; {} for text, which requests nothing."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in FORMAT_TYPES:
        raise PydanticCustomError("format", "must be an object with a type, one of {types}", {"types": _listed()})
    given = {name: item for name, item in value.items() if item is not None}
    if "schema" in given and kind in {"json_object", "json_schema"} and "json_schema" not in given:
        kind, bare = "json_schema", given.pop("schema")  # as llama.cpp and others have it, without a name
        given |= {"type": kind, "json_schema": {"name": "answer", "schema": bare}}
    allowed = {"json_schema": {"type", "json_schema"}, "structural_tag": {"type", "format", "structures", "triggers"}}
    if unknown := sorted({*given} - allowed.get(kind, {"type"})):
        raise PydanticCustomError(
            "format", "has a field {name} that {kind} does not take", {"name": str(unknown[0])[:60], "kind": kind}
        )
    if kind == "json_schema":
        given["json_schema"] = _named_schema(given.get("json_schema"))
    return {} if kind == "text" else given


def _named_schema(value: Any) -> dict[str, Any]:
    """OpenAI's wrapping: a name, a schema, and strict, which is true here whatever it says."""
    if not isinstance(value, dict):
        raise PydanticCustomError("format", "needs json_schema, an object with name and schema")
    given = {name: item for name, item in value.items() if item is not None}
    if unknown := sorted({*given} - {"name", "description", "schema", "strict"}):
        raise PydanticCustomError("format", "has an unknown field json_schema.{name}", {"name": str(unknown[0])[:60]})
    if not isinstance(given.get("name"), str) or not 1 <= len(given["name"]) <= 64:
        raise PydanticCustomError("format", "needs json_schema.name, a string of 1 to 64 characters")
    if not isinstance(given.get("strict", False), bool) or not isinstance(given.get("description", ""), str):
        raise PydanticCustomError(
            "format", "must have a boolean json_schema.strict and a string json_schema.description"
        )
    if not isinstance(given.get("schema", {}), dict | bool):
        raise PydanticCustomError("format", "must have a json_schema.schema that is an object or a boolean")
    return given


def _listed() -> str:
    return ", ".join(FORMAT_TYPES)


Schema = Annotated[Any, BeforeValidator(_schema)]
Choices = Annotated[list[str], BeforeValidator(_choices)]
Pattern = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Backend = Annotated[str, AfterValidator(_backend)]
Structured = Annotated[dict[str, Any], BeforeValidator(_structured)]
ResponseFormat = Annotated[dict[str, Any], BeforeValidator(_format)]
