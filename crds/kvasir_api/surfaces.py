"""The APIs that are spoken besides OpenAI's, by path: whose shape an error takes, and how a client names a model there.

Both HTTP edges, the runtime's and the gateway's, ask here, so that a client reads the same error from either.
"""

from typing import Final, Literal

import msgspec

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError

Surface = Literal["openai", "anthropic", "ollama"]

ANTHROPIC: Final = "/v1/messages"
OLLAMA: Final = "/api"
RESPONSES: Final = "/v1/responses"
CHATS: Final = "/v1/chat/completions"
CHAT_PREFIX: Final = "chatcmpl-"
BARE: Final = frozenset({"/rerank", "/v2/rerank", "/score", "/tokenize", "/detokenize"})
"""Routes of a pod that lie below none of the APIs' own paths."""
LATEST: Final = ":latest"
INSTANCE_CHARACTERS: Final = 8
"""Ids of stored responses and of chats begin with so many characters that name the process which holds them."""

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


def of(path: str) -> Surface:
    """The surface that a path belongs to. path: without its query."""
    if path == ANTHROPIC or path.startswith(ANTHROPIC + "/"):
        return "anthropic"
    return "ollama" if path == OLLAMA or path.startswith(OLLAMA + "/") else "openai"


def model_name(name: str, surface: Surface) -> str:
    """The served name that a client means: Ollama's clients write NAME:latest for a name without a tag."""
    return name.removesuffix(LATEST) if surface == "ollama" else name


def error_body(error: ApiError, surface: Surface) -> bytes:
    """An error as one JSON document in the surface's shape."""
    match surface:
        case "anthropic":
            kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
            return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})
        case "ollama":
            return msgspec.json.encode({"error": error.message})
        case "openai":
            return openai_errors.body(error)


def error_response(error: ApiError, path: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a whole answer on a path."""
    status, document, headers = openai_errors.response(error)
    surface = of(path)
    if surface != "openai":
        document = error_body(error, surface)
        headers["content-length"] = str(len(document))
    return status, document, headers


def named_response(path: str) -> str:
    """The id of the stored response that a path is about, "" where it is about none."""
    rest = path.removeprefix(RESPONSES + "/")
    name = rest.partition("/")[0] if rest != path else ""
    return "" if name == "input_tokens" else name


def running_chat(path: str) -> str:
    """The id of the running answer that a path brings results of calls into, "" where it brings none."""
    rest = path.removeprefix(CHATS + "/")
    name = rest.removesuffix("/tool_results")
    return name if path != rest != name and "/" not in name else ""


def held_by(held_id: str) -> str:
    """The process that holds a stored response or writes a chat's answer, "" where the id does not say."""
    bare = held_id.removeprefix("resp_").removeprefix(CHAT_PREFIX)
    return bare[:INSTANCE_CHARACTERS] if bare != held_id and len(bare) > INSTANCE_CHARACTERS else ""
