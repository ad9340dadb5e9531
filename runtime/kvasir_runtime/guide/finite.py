"""Whether any JSON text of finite length fits a schema, as far as recursion alone decides it.

A schema that requires itself inside of itself compiles like any other, and its answers never end. Used by trial.py.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

MAX_ROUNDS: Final = 64
KINDS: Final = ("null", "boolean", "integer", "number", "string", "array", "object")


def has_finite_text(schema: Any) -> bool:
    """False only where every text would have to be infinite. What else is wrong with a schema is not looked at."""
    found: dict[int, bool] = {}
    for _ in range(MAX_ROUNDS):
        search = _Search(schema, found)
        fits = search.fits(schema)
        merged = {**found, **search.seen}
        if fits or merged == found:
            return fits
        found = merged
    return True


class _Search:
    """One round: what is not known to be finite from the round before counts as infinite where it recurs."""

    def __init__(self, root: Any, known: Mapping[int, bool]) -> None:
        self.seen: dict[int, bool] = {}
        self._root = root
        self._known = known

    def fits(self, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return True
        key = id(schema)
        if key in self.seen:
            return self.seen[key]
        self.seen[key] = self._known.get(key, False)
        self.seen[key] = self._known.get(key, False) or self._all_fit(schema)
        return self.seen[key]

    def _all_fit(self, schema: Mapping[str, Any]) -> bool:
        if "const" in schema or "enum" in schema:
            return True
        ref = schema.get("$ref")
        if isinstance(ref, str) and not self.fits(_target(self._root, ref)):
            return False
        for name in ("anyOf", "oneOf"):
            options = schema.get(name)
            if isinstance(options, list) and options and not any(self.fits(option) for option in options):
                return False
        parts = schema.get("allOf")
        if isinstance(parts, list) and not all(self.fits(part) for part in parts):
            return False
        kinds = schema.get("type", KINDS)
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list | tuple):
            return True
        return any(self._kind_fits(kind, schema) for kind in kinds)

    def _kind_fits(self, kind: Any, schema: Mapping[str, Any]) -> bool:
        if kind == "object":
            properties, required = schema.get("properties"), schema.get("required")
            if not isinstance(properties, dict) or not isinstance(required, list):
                return True
            return all(self.fits(properties.get(name, True)) for name in required if isinstance(name, str))
        if kind == "array":
            least, first = schema.get("minItems"), schema.get("prefixItems")
            first = first if isinstance(first, list) else []
            needed = least if isinstance(least, int) else 0
            fit = [self.fits(item) for item in first[:needed]]
            return all(fit) and (needed <= len(first) or self.fits(schema.get("items", True)))
        return True


def _target(root: Any, ref: str) -> Any:
    """What a local reference points at; True for anchors, and where it cannot be found, which compiling reports."""
    if not ref.startswith("#") or ref[1:2] not in ("", "/"):
        return True
    place = root
    for part in ref[1:].split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(name, True)
        elif isinstance(place, list) and name.isdigit() and int(name) < len(place):
            place = place[int(name)]
        else:
            return True
    return place
