"""Checks queries on stored responses, and makes pages of their items. Pure; called by the routes."""

from collections.abc import Sequence
from typing import Any, Final

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.server.api.responses.items import Item

Query = Sequence[tuple[str, str]]
MAX_PAGE: Final = 100
_HARMLESS: Final = {
    "include": ("message.output_text.logprobs",),
    "include_obfuscation": ("false",),
    "stream": ("false",),
}


def check_query(query: Query) -> None:
    """Responses are shown as they are kept, so other parameters are refused. Raises Refused."""
    for name, value in query:
        bare = name.partition("[")[0]
        if value not in _HARMLESS.get(bare, ()):
            message = f"{openai_errors.quoted(f'{name}={value}')} is not supported here."
            raise Refused(openai_errors.invalid(message, param=bare[:100], code="unsupported_parameter"))


def page(items: Sequence[Item], query: Query) -> dict[str, Any]:
    """A page of items, newest first unless order is asc. Raises Refused."""
    asked = {"order": "desc", "limit": "20", "after": ""}
    for name, value in query:
        if name not in asked:
            check_query([(name, value)])
        else:
            asked[name] = value
    if asked["order"] not in {"asc", "desc"}:
        raise _wrong("order", "asc or desc")
    limit = asked["limit"]
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= MAX_PAGE):
        raise _wrong("limit", f"a number from 1 to {MAX_PAGE}")
    ordered = list(items) if asked["order"] == "asc" else list(reversed(items))
    start = 0
    if asked["after"]:
        places = [place for place, item in enumerate(ordered) if item["id"] == asked["after"]]
        if not places:
            raise _wrong("after", "the id of an item of this response")
        start = places[0] + 1
    shown = ordered[start : start + int(limit)]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": start + len(shown) < len(ordered),
    }


def _wrong(name: str, what: str) -> Refused:
    return Refused(openai_errors.invalid(f"`{name}` must be {what}.", param=name, code="invalid_value"))
