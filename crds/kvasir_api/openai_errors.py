"""Errors in OpenAI's shape: status, JSON body and headers, the same from the runtime and from the gateway.

Called at the HTTP edges; the constructors name the cases so that both edges choose the same status, code and retry
advice. Clients read `x-should-retry` and `retry-after`: an error that a retry cannot cure says so, which stops storms.
"""

import math
from dataclasses import dataclass
from typing import Final

import msgspec

TYPE_INVALID: Final = "invalid_request_error"
TYPE_AUTHENTICATION: Final = "authentication_error"
TYPE_RATE_LIMIT: Final = "rate_limit_error"
TYPE_UNAVAILABLE: Final = "service_unavailable_error"
TYPE_SERVER: Final = "server_error"
MODEL_OUTPUT_INVALID: Final = "model_output_invalid"
"""The code of an answer that the model's own numbers, NaN or infinity, made impossible."""
DRAINING: Final = "draining"
"""The code of a request that a replica gives back because it ends: another replica may have it, and no byte was sent."""
ENGINE_FAILED: Final = "engine_failed"
"""The code of a request whose replica lost its engine: another replica may have it."""
RETRY_DRAINING_S: Final = 1.0
OVERLOADED: Final = "overloaded"
"""The code of a request that found a full queue."""
TTFT_UNREACHABLE: Final = "ttft_unreachable"
"""The code of a request whose objective for the first token cannot be met now."""
QUEUE_CODES: Final = (OVERLOADED, TTFT_UNREACHABLE)
"""Of requests that the queue did not take."""
MAX_QUOTED: Final = 100
CODE_CONTEXT_LENGTH: Final = "context_length_exceeded"
_STATUS_OF_TYPE: Final = {
    TYPE_INVALID: 400,
    TYPE_AUTHENTICATION: 401,
    TYPE_RATE_LIMIT: 429,
    TYPE_SERVER: 500,
    TYPE_UNAVAILABLE: 503,
}
_STATUS_OF_CODE: Final = {
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "request_timeout": 408,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "headers_too_large": 431,
    "request_aborted": 499,
    "timeout": 504,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """One refusal or failure, without regard to how it is sent. param names the field at fault; retry_after_s is advice,
    None where a retry is no cure.
    """

    message: str
    type: str = TYPE_INVALID
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None

    @property
    def status(self) -> int:
        """The HTTP status that means the same: that of the code, or else that of the type."""
        return _STATUS_OF_CODE.get(self.code or "") or _STATUS_OF_TYPE[self.type]


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """The request itself is wrong; sending it again changes nothing."""
    return ApiError(message=message, param=param, code=code)


def context_length(
    *, limit: int, prompt_tokens: int, max_tokens: int, at_least: bool = False, param: str = "prompt"
) -> ApiError:
    """Prompt plus answer do not fit the model; all counts in tokens. The answer is named only where the prompt would fit
    with a shorter one.

    at_least says that prompt_tokens is a lower bound, because so long a text was not tokenized at all. param: the field
    that has the prompt.
    """
    bound = "at least " if at_least else ""
    names_answer = max_tokens > 0 and prompt_tokens < limit
    asked = (
        f"you requested {bound}{prompt_tokens + max_tokens} tokens ({bound}{prompt_tokens} in the prompt, "
        f"{max_tokens} for the answer). Reduce the prompt or the answer's length."
        if names_answer
        else f"the prompt has {bound}{prompt_tokens} tokens and leaves no room for an answer. Reduce the prompt."
    )
    return invalid(
        f"This model's maximum context length is {limit} tokens, however {asked}",
        param="max_tokens" if names_answer and not at_least else param,
        code=CODE_CONTEXT_LENGTH,
    )


def draining(message: str = "") -> ApiError:
    """A replica ends and gives the request back: another one may have it at once."""
    message = message or "This replica is shutting down."
    return unavailable(message, retry_after_s=RETRY_DRAINING_S, code=DRAINING)


def unauthorized() -> ApiError:
    """No key, or a wrong one. It does not say which, and never repeats the key."""
    return ApiError(
        message="A valid API key is needed: send it as `Authorization: Bearer KEY`.",
        type=TYPE_AUTHENTICATION,
        code="invalid_api_key",
    )


def model_not_found(name: str) -> ApiError:
    """Nothing serves a model of this name. The name is a client's text: it is quoted only in part."""
    return invalid(f"The model {quoted(name)} does not exist here.", param="model", code="model_not_found")


def response_not_found(response_id: str) -> ApiError:
    """No such response is kept, or no longer."""
    message = f"Response with id {quoted(response_id)} not found."
    return invalid(message, param="response_id", code="not_found")


def answer_not_running(answer_id: str) -> ApiError:
    """No answer with this id is being written that takes results of calls; it may have ended."""
    message = f"No answer {quoted(answer_id)} is being written that takes results of calls."
    return invalid(message, code="not_found")


def no_route(method: str, path: str) -> ApiError:
    """No such path."""
    return invalid(f"There is no {quoted(f'{method} {path}')} here.", code="not_found")


def method_not_allowed(method: str, path: str) -> ApiError:
    """The path exists, but not for this method."""
    return invalid(f"{quoted(path)} does not take {quoted(method)}.", code="method_not_allowed")


def body_too_large(limit_bytes: int) -> ApiError:
    """The body is longer than this server reads."""
    return invalid(f"The request body is larger than {limit_bytes} bytes.", code="body_too_large")


def overloaded(message: str, *, retry_after_s: float, code: str = OVERLOADED) -> ApiError:
    """The queue is full or too slow for the request; another try later, or on another replica, may succeed."""
    return ApiError(message=message, type=TYPE_RATE_LIMIT, code=code, retry_after_s=max(1.0, retry_after_s))


def aborted() -> ApiError:
    """Somebody ended the request by its id: 499, which no client retries by itself."""
    return invalid("The request was aborted by its id.", code="request_aborted")


def timed_out(message: str) -> ApiError:
    """The answer took as long as it may: 504. Another try would take as long, so clients do not make it by themselves."""
    return ApiError(message=message, type=TYPE_SERVER, code="timeout")


def unavailable(message: str, *, retry_after_s: float, code: str = "unavailable") -> ApiError:
    """Nothing can serve this now: loading, draining, or no replica."""
    return ApiError(message=message, type=TYPE_UNAVAILABLE, code=code, retry_after_s=max(1.0, retry_after_s))


def internal(
    message: str = "The server failed; the log has the details under this request id.", *, code: str = "internal_error"
) -> ApiError:
    """A failure of ours. The details are in the log, never in the answer."""
    return ApiError(message=message, type=TYPE_SERVER, code=code)


def body(error: ApiError) -> bytes:
    """The JSON document `{"error": {message, type, param, code}}`, also used for an error inside a stream."""
    return msgspec.json.encode(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def response(error: ApiError) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a whole answer. Header names are lower case."""
    document = body(error)
    headers = {"content-type": "application/json", "content-length": str(len(document))}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    elif error.status != 500:
        headers["x-should-retry"] = "false"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return error.status, document, headers


def quoted(text: str) -> str:
    """A client's text for a message: in quotes, printable, bounded."""
    short = text if len(text) <= MAX_QUOTED else text[: MAX_QUOTED - 1] + "…"
    return f"`{''.join(c if c.isprintable() else '?' for c in short)}`"
