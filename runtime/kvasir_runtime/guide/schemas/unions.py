"""Unions and intersections of JSON schemas, as simply as can be, and readers of their keywords. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvasir_runtime.guide.errors import GrammarError

Schema = Any
KINDS: Final = ("null", "boolean", "number", "string", "array", "object")


class TooLarge(GrammarError):
    """What a schema would become is too large to be compiled."""


def guarded(kind: str, options: Sequence[Schema]) -> Schema:
    """Values of other types, or one of some schemas of this type."""
    others = {"type": [name for name in KINDS if name != kind]}
    return any_of([others, *({"type": kind, **one} if isinstance(one, dict) else one for one in options)])


def all_of(parts: Sequence[Schema]) -> Schema:
    """All of some schemas, as simply as can be."""
    kept = [part for part in parts if part is not True and part != {}]
    if False in kept:
        return False
    if not kept:
        return {}
    if len(kept) == 1:
        return kept[0]
    first, rest = (kept[0], kept[1:]) if not {"allOf", "$ref", "anyOf"} & kept[0].keys() else ({}, kept)
    return {**first, "allOf": rest}


def any_of(options: Sequence[Schema]) -> Schema:
    """One of some schemas, as simply as can be."""
    kept = [one for one in options if one is not False]
    if any(one is True or one == {} for one in kept):
        return {}
    if not kept:
        return False
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def mapping(schema: Mapping[str, Schema], keyword: str) -> Mapping[str, Schema]:
    """The value of a keyword that is an object, empty where it is none."""
    found = schema.get(keyword)
    return found if isinstance(found, Mapping) else {}


def listed(schema: Mapping[str, Schema], keyword: str) -> list[Schema]:
    """The value of a keyword that is a list, empty where it is none."""
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def dependencies(schema: Mapping[str, Schema]) -> list[tuple[str, Schema]]:
    """Names with what their presence needs: other names or a schema. dependencies is the keyword of older drafts."""
    keywords = ("dependentRequired", "dependentSchemas", "dependencies")
    return [pair for keyword in keywords for pair in mapping(schema, keyword).items()]
