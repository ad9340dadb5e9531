"""What is decided from a request's head alone, and what its body must say: pure, called by the ext-proc stream.

POST below /v1/ and /api/ and to the few routes beside them goes to a pod, and what is asked of a stored response; lists
of models and the health answer come from here, everything else is refused, in the shape of the path's surface.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote

import msgspec

from kvasir_api import __version__, openai_errors, surfaces
from kvasir_api.openai_errors import ApiError
from kvasir_gateway.table import Table

MODELS = "/v1/models"
HEALTH = ("/health", "/healthz")
OWNER = "kvasir"
TAGS = surfaces.OLLAMA + "/tags"
LOADED = surfaces.OLLAMA + "/ps"
VERSION = surfaces.OLLAMA + "/version"
FOREVER = "9999-12-31T23:59:59Z"
STORED_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of the gateway's own."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    details: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a body asks for. response: id of the stored response that it goes on with, "" for none."""

    model: str
    response: str = ""


class _Body(msgspec.Struct):
    """Untyped, since a field of a wrong type is for the pod to judge, which knows the route. name: the model, as older
    clients of Ollama write it."""

    model: object = None
    name: object = None
    previous_response_id: object = None


def refusal(error: ApiError, path: str = "") -> Answer:
    """An error as an answer."""
    status, body, headers = surfaces.error_response(error, path)
    return Answer(status=status, body=body, headers=headers, details=error.code or error.type)


def enter(method: str, path: str, headers: Mapping[str, str], *, table: Table, max_body_bytes: int) -> Answer | None:
    """The answer to a request that needs no pod; None when its body has to be seen first. path is without its query."""
    own = _own(path, table)
    if own is not None:
        return own if method in {"GET", "HEAD"} else refusal(openai_errors.method_not_allowed(method, path), path)
    if not path.startswith(("/v1/", surfaces.OLLAMA + "/")) and path not in surfaces.BARE:
        return refusal(openai_errors.no_route(method, path), path)
    if method not in (STORED_METHODS if surfaces.named_response(path) else {"POST"}):
        return refusal(openai_errors.method_not_allowed(method, path), path)
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_body_bytes:
        return refusal(openai_errors.body_too_large(max_body_bytes), path)
    return None


def asked(body: bytes, path: str = "") -> Asked | ApiError:
    """What a body asks for. All of it is checked to be JSON; nothing of it but this is kept."""
    try:
        found = msgspec.json.decode(body, type=_Body)
    except msgspec.ValidationError:  # JSON, but no object
        found = _Body()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return openai_errors.invalid("The request body is not valid JSON.", code="invalid_json")
    except RecursionError:
        return openai_errors.invalid("The request body is nested too deeply.", code="invalid_json")
    surface, name, response = surfaces.of(path), found.model, found.previous_response_id
    if surface == "ollama" and not isinstance(name, str):
        name = found.name
    if not isinstance(name, str):
        return openai_errors.invalid("The field `model` is needed: a string that names a model.", param="model")
    return Asked(model=surfaces.model_name(name, surface), response=response if isinstance(response, str) else "")


def _own(path: str, table: Table) -> Answer | None:
    """What the gateway says itself."""
    if path in HEALTH:
        return _health()
    if path == MODELS or path.startswith(MODELS + "/"):
        return _models(path, table)
    if path in {TAGS, LOADED}:
        return _tags(table, loaded=path == LOADED)
    return _json(msgspec.json.encode({"version": __version__}), "version") if path == VERSION else None


def _tags(table: Table, *, loaded: bool) -> Answer:
    """Ollama's lists. What a pod knows of its model, such as its size, is not known here."""
    cards = [
        {"name": name + surfaces.LATEST, "model": name + surfaces.LATEST, "details": {"families": []}}
        | ({"expires_at": FOREVER} if loaded else {"modified_at": service.created} if service.created else {})
        for name, service in sorted(table.by_model.items())
        if service.ready or not loaded
    ]
    return _json(msgspec.json.encode({"models": cards}), "models")


def _health() -> Answer:
    return _json(b'{"status":"ok"}', "health")


def _models(path: str, table: Table) -> Answer:
    cards = {
        name: {"id": name, "object": "model", "created": _epoch(service.created), "owned_by": OWNER}
        for name, service in sorted(table.by_model.items())
    }
    if path == MODELS:
        return _json(msgspec.json.encode({"object": "list", "data": list(cards.values())}), "models")
    name = unquote(path.removeprefix(MODELS + "/"))
    if name not in cards:
        return refusal(openai_errors.model_not_found(name), path)
    return _json(msgspec.json.encode(cards[name]), "models")


def _epoch(created: str) -> int:
    try:
        return int(datetime.fromisoformat(created).timestamp())
    except ValueError:
        return 0


def _json(body: bytes, details: str) -> Answer:
    return Answer(status=200, body=body, headers={"content-type": "application/json"}, details=details)
