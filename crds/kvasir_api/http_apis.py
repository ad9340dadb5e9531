"""The HTTP APIs by path: the format of their errors and of models, how clients write a model's name, ids in paths.

Used by the runtime's server and the gateway, so that a client reads the same from both.
"""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError

HttpApi = Literal["openai", "anthropic", "ollama"]

ANTHROPIC: Final = "/v1/messages"
OLLAMA: Final = "/api"
RESPONSES: Final = "/v1/responses"
CHATS: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MAX_CHOICES: Final = 128
"""Of one prompt. No other API than CHATS and COMPLETIONS draws several."""
MAX_PROMPTS: Final = 128
"""Of a completion."""
MAX_SEQUENCES: Final = 256
"""Of a completion, for all its prompts."""
CHAT_PREFIX: Final = "chatcmpl-"
ID_PREFIXES: Final = ("resp_", CHAT_PREFIX, "cmpl-", "msg_")
"""Of answers."""
ABORTS: Final = frozenset({"/abort_requests", "/abort_request"})
"""End running answers by their ids, as vLLM and SGLang name it."""
UNPREFIXED: Final = frozenset({"/rerank", "/v2/rerank", "/score", "/tokenize", "/detokenize"}) | ABORTS
"""Routes of a pod outside the APIs' prefixes."""
LATEST: Final = ":latest"
PROCESS_BYTES: Final = 4
SERVICE_BYTES: Final = 10
"""So many that no name for a service of one's own can be found that has the tag of another."""
INSTANCE_CHARACTERS: Final = 2 * (PROCESS_BYTES + SERVICE_BYTES)
"""Ids of answers begin, behind their prefix, with `instance` in /state, which is so long."""

_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def of(path: str) -> HttpApi:
    """The API that a path belongs to. path: without its query."""
    if path == ANTHROPIC or path.startswith(ANTHROPIC + "/"):
        return "anthropic"
    return "ollama" if path == OLLAMA or path.startswith(OLLAMA + "/") else "openai"


def model_name(name: str, api: HttpApi) -> str:
    """The served name that a client means: Ollama's clients write NAME:latest for a name without a tag."""
    return name.removesuffix(LATEST) if api == "ollama" else name


def model_card(name: str, created: int) -> dict[str, Any]:
    """A model as the clients of OpenAI's and of Anthropic's API read it, for the path is the same in both.

    created: seconds since the epoch.
    """
    since = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "kvasir",
        "type": "model",
        "display_name": name,
        "created_at": since,
        "lifecycle": "active",
    }


def model_list(cards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All models, on one page of Anthropic's."""
    names = [card["id"] for card in cards] or [None]
    return {"object": "list", "data": list(cards), "has_more": False, "first_id": names[0], "last_id": names[-1]}


def error_body(error: ApiError, api: HttpApi) -> bytes:
    """An error as one JSON document in the API's format."""
    match api:
        case "anthropic":
            kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
            # Clients of Anthropic's API shorten a conversation where these words are in the message.
            long = error.code == openai_errors.CODE_CONTEXT_LENGTH and error.param != "max_tokens"
            message = f"prompt is too long: {error.message}" if long else error.message
            return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
        case "ollama":
            return msgspec.json.encode({"error": error.message})
        case "openai":
            return openai_errors.body(error)


def error_response(error: ApiError, path: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a whole answer on a path."""
    status, document, headers = openai_errors.response(error)
    api = of(path)
    if api != "openai":
        document = error_body(error, api)
        headers["content-length"] = str(len(document))
    return status, document, headers


def stored_response_id(path: str) -> str:
    """The id of the stored response in a path, "" without one."""
    rest = path.removeprefix(RESPONSES + "/")
    name = rest.partition("/")[0] if rest != path else ""
    return "" if name == "input_tokens" else name


def running_chat_id(path: str) -> str:
    """The id of the running chat completion in a path that posts tool results, "" for other paths."""
    rest = path.removeprefix(CHATS + "/")
    name = rest.removesuffix("/tool_results")
    return name if path != rest != name and "/" not in name else ""


def instance_of(held_id: str) -> str:
    """The instance that holds a stored response or writes an answer, "" for an id of another form."""
    bare = next((held_id.removeprefix(prefix) for prefix in ID_PREFIXES if held_id.startswith(prefix)), "")
    return bare[:INSTANCE_CHARACTERS] if len(bare) > INSTANCE_CHARACTERS else ""


def new_instance(service: str) -> str:
    """A name for a process of a service, by which the gateway finds what only it holds. service: NAMESPACE/NAME, "" for
    none."""
    return secrets.token_hex(PROCESS_BYTES) + _service_tag(service)


def is_instance_of(instance: str, service: str) -> bool:
    """Whether an instance is the name of a process of this service."""
    return instance[2 * PROCESS_BYTES :] == _service_tag(service)


def _service_tag(service: str) -> str:
    return hashlib.blake2b(service.encode(), digest_size=SERVICE_BYTES, person=b"kvasir-service").hexdigest()
