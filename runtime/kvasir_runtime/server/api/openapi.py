"""/openapi.json: FastAPI's description of the routes, completed by what is true of all of them.

Called by the http app. FastAPI finds the routes, so that a new one is described without being named here: its errors
follow from its API, its body and its parameters, and null is allowed wherever it means absent. Answers are
described where a document is declared in ANSWERS of an API or by the route itself; else they are any JSON object.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from kvasir_api import http_apis
from kvasir_runtime.server.api import health
from kvasir_runtime.server.api.anthropic.protocol import AnthropicError
from kvasir_runtime.server.api.ollama.protocol import OllamaError
from kvasir_runtime.server.api.openai import protocol as openai
from kvasir_runtime.server.api.openai.protocol import Error
from kvasir_runtime.server.api.pooling import protocol as pooling

Document = dict[str, Any]
REFS: Final = "#/components/schemas/"
EVENTS: Final = {"openai": "text/event-stream", "anthropic": "text/event-stream", "ollama": "application/x-ndjson"}
ERRORS: Final = {
    400: "The request is wrong; the message says where.",
    401: "A key is asked for here, and none that is known came.",
    404: "Nothing has this name.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON, or compressed.",
    429: "Too many requests wait; Retry-After says when to come back.",
    500: "The engine could not serve this request.",
    503: "Nothing is served now; Retry-After says when to come back.",
}


UNREADY: Final = frozenset({"/health", "/ping"})
"""Answer 503 with their own document while nothing is served."""
ANSWERS: Final[dict[str, Any]] = {**openai.ANSWERS, **pooling.ANSWERS, **health.ANSWERS}
_SHAPES: Final = {"openai": Error, "anthropic": AnthropicError, "ollama": OllamaError}


def described(app: FastAPI, names: Sequence[str], *, strict: bool) -> Document:
    """The document. names: of the model, the only values that a field for it takes. strict: no unknown fields."""
    made = get_openapi(title=app.title, version=app.version, description="A runtime of Kvasir.", routes=app.routes)
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    types = [*ANSWERS.values(), *_SHAPES.values()]
    (_, answers) = msgspec.json.schema_components(types, ref_template=REFS + "{name}")
    schemas |= answers
    for path, operations in made["paths"].items():
        for operation in operations.values():
            streams = False
            for content in _contents(operation.get("requestBody", {})):
                content["schema"] = _lifted(content["schema"], schemas)
                streams |= _widened(content["schema"], names, strict=strict)
            _answered(path, operation, streams=streams)
    for name in list(schemas):
        if name not in answers:
            schemas[name] = _nullable(schemas[name])
            if not strict:
                _open(schemas[name])
    return made


def _contents(holder: Mapping[str, Any]) -> Iterator[Document]:
    yield from holder.get("content", {}).values()


def _lifted(schema: Document, schemas: Document) -> Document:
    """The schema with its own definitions moved to where the document's references point, under names of its own."""
    owner = schema.get("title", "Body")
    for name, one in schema.pop("$defs", {}).items():
        schemas[f"{owner}.{name}"] = _moved(one, owner)
    moved: Document = _moved(schema, owner)
    return moved


def _moved(node: Any, owner: str) -> Any:
    if isinstance(node, list):
        return [_moved(item, owner) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        name: item.replace("#/$defs/", f"{REFS}{owner}.")
        if name == "$ref" and isinstance(item, str)
        else _moved(item, owner)
        for name, item in node.items()
    }


def _open(schema: Document) -> None:
    """Of an object that takes fields that are not listed, and leaves them out."""
    if schema.get("additionalProperties") in (False, {"type": "null"}):
        del schema["additionalProperties"]


def _widened(schema: Document, names: Sequence[str], *, strict: bool) -> bool:
    """Null for whatever may be absent, known or not, and the names of the model. Whether it may ask for a stream."""
    properties = schema.get("properties", {})
    if "model" in properties:
        properties["model"] = {"type": "string", "enum": list(names)}
    schema.update(_nullable(schema))
    if not strict:
        _open(schema)
    elif schema.get("additionalProperties") is False:
        schema["additionalProperties"] = {"type": "null"}
    return "stream" in properties


def _nullable(schema: Document) -> Document:
    required = set(schema.get("required", ()))
    properties = {
        name: one if name in required else {"anyOf": [one, {"type": "null"}]}
        for name, one in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties} if properties else schema


def _answered(path: str, operation: Document, *, streams: bool) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own; nothing is validated by it
    api = http_apis.of(path)
    success = responses["200"]
    success["description"] = "The answer."
    success["content"] = _success(path, success, EVENTS[api] if streams else "")
    if not success["content"]:
        del success["content"]
    if path in UNREADY:
        responses["503"] = {**success, "description": "Nothing is served now."}
        return
    for status in _statuses(path, operation):
        shape = {"$ref": REFS + _SHAPES[api].__name__}
        content = {"application/json": {"schema": shape}}
        responses[str(status)] = {"description": ERRORS[status], "content": content}


def _success(path: str, given: Document, events: str) -> Document:
    if path == "/ping":
        return {}
    if path == "/metrics":
        return {"text/plain": {"schema": {"type": "string"}}}
    known = ANSWERS.get(path)
    schema = {"$ref": REFS + known.__name__} if known else {"type": "object"}
    stated = given.get("content", {}).get("application/json", {}).get("schema")
    made: Document = {"application/json": {"schema": stated or schema}}
    if events:
        made[events] = {"schema": {"type": "string"}}
    return made


def _statuses(path: str, operation: Document) -> list[int]:
    """Errors that an operation may end in."""
    if "requestBody" in operation:
        return list(ERRORS)
    if operation.get("parameters") or "{" in path:
        return [400, 401, 404, 500, 503]
    return [401] if path.startswith("/v1/") else []
