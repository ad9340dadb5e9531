"""Patterns for names and texts that a schema forbids or counts, without look-around. Pure."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

ANYTHING: Final = r"[\s\S]"


def one_of(texts: Collection[str]) -> str:
    """Exactly one of these texts."""
    return f"^({'|'.join(sorted(map(escaped, texts)))})$"


def none_of(texts: Collection[str]) -> str:
    """Any text but these: what leaves the tree of their letters, or ends at one of its inner nodes."""
    return f"^({_beside(sorted(set(texts)))})$"


def of_length(least: int, most: int | None) -> str:
    """Texts of so many characters."""
    return f"^{ANYTHING}{{{least},{'' if most is None else most}}}$"


def _beside(words: list[str]) -> str:
    """What is none of these words, which have lost a common beginning."""
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    if not tails:
        return f"{ANYTHING}{'+' if words else '*'}"
    letters = "".join(map(escaped, sorted(tails)))
    options = [
        f"[^{letters}]{ANYTHING}*",
        *(f"{escaped(letter)}({_beside(tails[letter])})" for letter in sorted(tails)),
    ]
    return "|".join([*options, *([] if "" in words else [""])])


def escaped(text: str) -> str:
    """A text as a part of a pattern."""
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$#&-~/" else f"\\x{{{ord(c):x}}}" if c < " " else c for c in text)


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern, which is ECMA's, is found in a name; False where Python cannot read it."""
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False


def names(schema: Any) -> str | None:
    """A pattern of the texts that a schema allows, None where there is none that is simple."""
    if not isinstance(schema, Mapping):
        return None
    keywords = {keyword for keyword in schema if keyword not in {"type", "title", "description", "$comment"}}
    if keywords == {"pattern"} and isinstance(schema["pattern"], str):
        return str(schema["pattern"])
    if keywords in ({"enum"}, {"const"}):
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return one_of([value for value in values if isinstance(value, str)]) if isinstance(values, list) else None
    if keywords and keywords <= {"minLength", "maxLength"}:
        most = schema.get("maxLength")
        return of_length(int(schema.get("minLength", 0)), None if most is None else int(most))
    return None
