"""What is decided from a request's head alone, and what its body must say: pure, called by the ext-proc stream.

Only POST below /v1/ goes to a pod; the list of models and the health answer come from here, everything else is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote

import msgspec

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_gateway.table import Table

MODELS = "/v1/models"
HEALTH = ("/health", "/healthz")
OWNER = "kvasir"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of the gateway's own."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    details: str


class _Body(msgspec.Struct):
    model: str


def refusal(error: ApiError) -> Answer:
    """An error as an answer."""
    status, body, headers = openai_errors.response(error)
    return Answer(status=status, body=body, headers=headers, details=error.code or error.type)


def enter(method: str, path: str, headers: Mapping[str, str], *, table: Table, max_body_bytes: int) -> Answer | None:
    """The answer to a request that needs no pod; None when its body has to be seen first. path is without its query."""
    if path in HEALTH or path == MODELS or path.startswith(MODELS + "/"):
        if method not in {"GET", "HEAD"}:
            return refusal(openai_errors.method_not_allowed(method, path))
        return _health() if path in HEALTH else _models(path, table)
    if not path.startswith("/v1/"):
        return refusal(openai_errors.no_route(method, path))
    if method != "POST":
        return refusal(openai_errors.method_not_allowed(method, path))
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > max_body_bytes:
        return refusal(openai_errors.body_too_large(max_body_bytes))
    return None


def model_of(body: bytes) -> str | ApiError:
    """The model that a body names. All of the body is checked to be JSON; nothing of it but this is kept."""
    try:
        return msgspec.json.decode(body, type=_Body).model
    except msgspec.ValidationError:
        return openai_errors.invalid("The field `model` is needed: a string that names a model.", param="model")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return openai_errors.invalid("The request body is not valid JSON.", code="invalid_json")
    except RecursionError:
        return openai_errors.invalid("The request body is nested too deeply.", code="invalid_json")


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
        return refusal(openai_errors.model_not_found(name))
    return _json(msgspec.json.encode(cards[name]), "models")


def _epoch(created: str) -> int:
    try:
        return int(datetime.fromisoformat(created).timestamp())
    except ValueError:
        return 0


def _json(body: bytes, details: str) -> Answer:
    return Answer(status=200, body=body, headers={"content-type": "application/json"}, details=details)
