"""Reads a request: what its head alone decides, and which model its body names. Pure; called by the picker.

A POST below /v1/ and /api/ and to the few routes beside them goes to a pod, and so does every request about a stored
response. Lists of models and the health check are answered here. Everything else is an error, in the format of the
path's API.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import unquote

import msgspec

from kvasir_api import __version__, http_apis, names, openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_gateway.routing_table import RoutedService, RoutingTable

MODELS = "/v1/models"
HEALTH = ("/health", "/healthz")
TAGS = http_apis.OLLAMA + "/tags"
LOADED = http_apis.OLLAMA + "/ps"
VERSION = http_apis.OLLAMA + "/version"
GENERATE = http_apis.OLLAMA + "/generate"
SHAPING = ("messages", "prompt", "input", "instructions", "system", "tools", "chat_template_kwargs")
MOST_DIGITS = 6
"""That are read of a count: more than any count that a pod takes has."""
DRAWING = frozenset({http_apis.CHATS, http_apis.COMPLETIONS})
"""Paths whose pods draw several choices. The others leave n and best_of out, as fields that they do not know."""
STREAMING = frozenset({http_apis.CHATS, http_apis.COMPLETIONS, http_apis.RESPONSES, http_apis.ANTHROPIC})
"""Paths whose streams are server-sent events, which have comments."""
FOREVER = "9999-12-31T23:59:59Z"
STORED_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBounds:
    """timeout_s: of a whole answer, waiting for a replica included."""

    max_body_bytes: int = 8 << 20
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImmediateResponse:
    """An answer that the gateway gives itself, named as in Envoy's ext-proc protocol."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    details: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedBody:
    """What the gateway reads of a body. model: None where it is left out. response: id of the stored response that it
    continues, "" for none.

    streams: the answer is a stream of server-sent events. shaping: the fields that shape a prompt, as
    `hashes.request_text` takes them. most_output_tokens: 0 without a bound. num_sequences: that are generated.
    priority: lower is more urgent, None where the body has none.
    """

    model: str | None
    response: str = ""
    streams: bool = False
    shaping: Mapping[str, object] = field(default_factory=dict)
    cache_salt: str = ""
    most_output_tokens: int = 0
    num_sequences: int = 1
    priority: int | None = None


_NONE = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    """Untyped: the pod knows the route and rejects a field of a wrong type. name: the model, as older clients of
    Ollama write it. n, best_of: as they are, of numbers that no float holds, too."""

    model: object = None
    name: object = None
    previous_response_id: object = None
    cache_salt: object = None
    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None
    raw: object = None
    n: msgspec.Raw = _NONE
    best_of: msgspec.Raw = _NONE
    priority: object = None
    stream: object = None
    messages: object = msgspec.UNSET
    prompt: object = msgspec.UNSET
    input: object = msgspec.UNSET
    instructions: object = msgspec.UNSET
    system: object = msgspec.UNSET
    tools: object = msgspec.UNSET
    chat_template_kwargs: object = msgspec.UNSET


def error_response(error: ApiError, path: str = "", further: Mapping[str, str] | None = None) -> ImmediateResponse:
    """An error in the format of the path's API. further: headers beside its own."""
    status, body, headers = http_apis.error_response(error, path)
    headers = {**headers, **(further or {})}
    return ImmediateResponse(status=status, body=body, headers=headers, details=error.code or error.type)


def lists_models(path: str) -> bool:
    """Whether the gateway answers a path with models that it knows."""
    return path in {MODELS, TAGS, LOADED} or path.startswith(MODELS + "/")


def respond_to_head(
    method: str, path: str, headers: Mapping[str, str], *, table: RoutingTable, max_body_bytes: int
) -> ImmediateResponse | None:
    """The answer to a request that needs no pod; None when its body has to be seen first. path is without its query."""
    if "," in headers.get(":authority", ""):  # Envoy joins two of them, of which a pod refuses the request
        return error_response(
            openai_errors.invalid("The request has more than one Host.", code="malformed_request"), path
        )
    own = _own(path, table)
    if own is not None:
        if method not in {"GET", "HEAD"}:
            return error_response(openai_errors.method_not_allowed(method, path), path)
        return own
    if not path.startswith(("/v1/", http_apis.OLLAMA + "/")) and path not in http_apis.UNPREFIXED:
        return error_response(openai_errors.no_route(method, path), path)
    if method not in (STORED_METHODS if http_apis.stored_response_id(path) else {"POST"}):
        return error_response(openai_errors.method_not_allowed(method, path), path)
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_body_bytes:
        return error_response(openai_errors.body_too_large(max_body_bytes), path)
    return None


def parse_body(body: bytes, path: str = "") -> ParsedBody | ApiError:
    """The model that a body names. The whole body must be JSON."""
    try:
        found = msgspec.json.decode(body, type=_Body)
    except msgspec.ValidationError:  # JSON, but no object
        found = _Body()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return openai_errors.invalid("The request body is not valid JSON.", code="invalid_json")
    except RecursionError:
        return openai_errors.invalid("The request body is nested too deeply.", code="invalid_json")
    api, name, response = http_apis.of(path), found.model, found.previous_response_id
    if api == "ollama" and name is None:
        name = found.name
    if not isinstance(name, str | None):
        return openai_errors.invalid("The field `model` is a string that names a model.", param="model")
    return ParsedBody(
        model=None if name is None else http_apis.model_name(name, api),
        response=response if isinstance(response, str) else "",
        streams=found.stream is True and path in STREAMING,
        shaping=_shaping(found, path),
        cache_salt=found.cache_salt if isinstance(found.cache_salt, str) else "",
        most_output_tokens=_most_output_tokens(found),
        num_sequences=_num_sequences(found, path),
        priority=int(found.priority) if isinstance(found.priority, int) else None,
    )


def _shaping(body: _Body, path: str) -> Mapping[str, object]:
    """The fields that shape a prompt; of Ollama's texts those of the chat that its pod makes of them."""
    found = {name: value for name in SHAPING if (value := getattr(body, name)) is not msgspec.UNSET}
    if path != GENERATE or body.raw:
        return found
    return {"system": body.system or None, "messages": [{"role": "user", "content": body.prompt or ""}]}


def _most_output_tokens(body: _Body) -> int:
    """The smallest bound of the answer's length that the body has, 0 for none."""
    fields = (body.max_tokens, body.max_completion_tokens, body.max_output_tokens)
    return min((bound for bound in fields if isinstance(bound, int) and bound > 0), default=0)


def _num_sequences(body: _Body, path: str) -> int:
    """For each prompt as many as choices are drawn; 1 for what a pod refuses: no such number, or more than it takes."""
    numbers = [bytes(field) for field in (body.n, body.best_of) if bytes(field) != bytes(_NONE)]
    if path not in DRAWING or not all(number.isdigit() for number in numbers):
        return 1
    drawn = max((1, *(int(number[:MOST_DIGITS]) for number in numbers)))
    prompts = body.prompt if path == http_apis.COMPLETIONS and isinstance(body.prompt, list) else ()
    several = len(prompts) if prompts and not isinstance(prompts[0], int) else 1
    found = drawn * several
    is_taken = drawn <= http_apis.MAX_CHOICES and several <= http_apis.MAX_PROMPTS and found <= http_apis.MAX_SEQUENCES
    return found if is_taken else 1


def with_model(body: bytes, path: str, model: str) -> bytes:
    """A body that names another model; all other fields keep their bytes and their order. body: as parse_body takes."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if http_apis.of(path) == "ollama":
        fields.pop("name", None)
    return msgspec.json.encode({**fields, "model": model})


def priority_of(parsed: ParsedBody, headers: Mapping[str, str]) -> int:
    """As the pod takes it: the header's, else the body's. What is no number is for the pod to refuse."""
    try:
        return int(headers[names.HEADER_PRIORITY])
    except (KeyError, ValueError):
        return parsed.priority or 0


def service_of(parsed: ParsedBody, table: RoutingTable) -> RoutedService | ApiError:
    """The service of a model, or the only one that there is where none is named."""
    if parsed.model is not None:
        return table.service(parsed.model) or openai_errors.model_not_found(parsed.model)
    found = {service.key: service for service in table.by_model.values()}
    if len(found) == 1:
        return next(iter(found.values()))
    what = f"{len(found)} services have one" if found else "no service has one yet"
    return openai_errors.invalid(f"The field `model` is needed, since {what}.", param="model")


def _own(path: str, table: RoutingTable) -> ImmediateResponse | None:
    """Answers of the gateway itself: health, the lists of models, Ollama's version."""
    if path in HEALTH:
        return _health()
    if path == MODELS or path.startswith(MODELS + "/"):
        return _models(path, table)
    if path in {TAGS, LOADED}:
        return _tags(table, loaded=path == LOADED)
    return _json(msgspec.json.encode({"version": __version__}), "version") if path == VERSION else None


def _tags(table: RoutingTable, *, loaded: bool) -> ImmediateResponse:
    """Ollama's lists, without what only a pod knows of its model, such as its size."""
    cards = [
        {"name": name + http_apis.LATEST, "model": name + http_apis.LATEST, "details": {"families": []}}
        | ({"expires_at": FOREVER} if loaded else {"modified_at": service.created} if service.created else {})
        for name, service in sorted(table.by_model.items())
        if service.ready or not loaded
    ]
    return _json(msgspec.json.encode({"models": cards}), "models")


def _health() -> ImmediateResponse:
    return _json(b'{"status":"ok"}', "health")


def _models(path: str, table: RoutingTable) -> ImmediateResponse:
    cards = {name: http_apis.model_card(name, _epoch(created)) for name, created in sorted(table.listed().items())}
    if path == MODELS:
        return _json(msgspec.json.encode(http_apis.model_list(list(cards.values()))), "models")
    name = unquote(path.removeprefix(MODELS + "/"))
    service = table.service(name)
    created = service.created if service is not None else table.listed().get(name)
    if created is None:
        return error_response(openai_errors.model_not_found(name), path)
    return _json(msgspec.json.encode(http_apis.model_card(name, _epoch(created))), "models")


def _epoch(created: str) -> int:
    try:
        return int(datetime.fromisoformat(created).timestamp())
    except ValueError:
        return 0


def _json(body: bytes, details: str) -> ImmediateResponse:
    return ImmediateResponse(status=200, body=body, headers={"content-type": "application/json"}, details=details)
