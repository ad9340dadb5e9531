"""What is sent to an external backend, and what of its answer a client gets. Pure.

A backend is believed no more than its bounds: of a head the status and the type of the content, of a body its bytes up
to a limit, of the tokens that it counts what can be true.
"""

import re
from collections.abc import Mapping
from json import JSONDecoder
from typing import Any, Final

import msgspec

from kvasir_api import http_apis, openai_errors
from kvasir_api.openai_errors import ApiError

OURS: Final = ("priority", "cache_salt", "request_id", "continuation")
"""Fields that other servers refuse."""
JSON_TYPE: Final = "application/json"
STREAM_TYPE: Final = "text/event-stream"
INVALID: Final = "backend_invalid_answer"
CLIENT_ERRORS: Final = frozenset({400, 413, 415, 422})
"""Statuses that are about the request: another backend would say the same."""
RETRY_AFTER_S: Final = 2.0
MOST_RETRY_S: Final = 60.0
MOST_MESSAGE: Final = 2000
MOST_ANSWER_BYTES: Final = 64 << 20
MOST_EVENT_BYTES: Final = 1 << 20
TAIL_BYTES: Final = 4096
"""Of a whole answer that are kept for the next piece: longer than usage is."""
MOST_TRIED: Final = 4
"""Places in one piece at which usage may begin, from the last one on."""
BYTES_PER_TOKEN: Final = 4
MOST_TOKENS: Final = 1_000_000
USAGE: Final = re.compile(rb'"usage"\s*:\s*(?=\{)')
"""In a string its quotes would be escaped."""
DONE: Final = b"[DONE]"
END_OF_EVENT: Final = re.compile(rb"\n\r?\n")
"""An empty line. Where one begins that has not come yet is at most MOST_LINE_END bytes before the end."""
MOST_LINE_END: Final = 2
_Fields = dict[str, msgspec.Raw]


class SentBody(msgspec.Struct, frozen=True, kw_only=True):
    """content: with the backend's name of the model. streams: the answer is a stream of events. hides_usage: its last
    event, with the usage, was requested here and not by the client."""

    content: bytes
    streams: bool = False
    hides_usage: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that a backend counted."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class BackendFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A backend does not answer. error: for the client where nothing else does. rests: others come first for a while;
    not where what was requested may be the cause."""

    error: ApiError
    rests: bool = True


class BodyError(Exception):
    """A body that no backend gets. error: for its client."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class AnswerError(Exception):
    """An answer is none, or longer than any."""


def sent_body(body: bytes, path: str, model: str) -> SentBody:
    """The body for a backend; other fields keep their bytes. Streams end with their usage. Raises BodyError for what is
    no JSON object, and for `stream` that servers read in different ways."""
    try:
        fields = msgspec.json.decode(body, type=_Fields)
    except msgspec.MsgspecError as error:
        raise BodyError(openai_errors.invalid("The request body is no JSON object.", code="invalid_json")) from error
    for name in OURS:
        fields.pop(name, None)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    stream = bytes(fields.get("stream", b"null")) if path in {http_apis.CHATS, http_apis.COMPLETIONS} else b"null"
    if stream not in {b"true", b"false", b"null"}:
        raise BodyError(openai_errors.invalid("stream: it is neither true nor false.", param="stream"))
    streams = stream == b"true"
    options = _object(fields.get("stream_options"))
    wanted = options.get("include_usage") is True
    if streams:
        fields["stream_options"] = msgspec.Raw(msgspec.json.encode({**options, "include_usage": True}))
    return SentBody(content=msgspec.json.encode(fields), streams=streams, hides_usage=streams and not wanted)


def type_error(sent: SentBody, headers: Mapping[str, str]) -> str:
    """Why an answer of status 200 is none by its head; "" where it is one."""
    wanted = STREAM_TYPE if sent.streams else JSON_TYPE
    found = headers.get("content-type", "").partition(";")[0].strip().lower()
    if found != wanted:
        return f"its answer is not {wanted}"
    if headers.get("content-encoding", "identity").lower() != "identity":
        return "its answer is compressed, which was not requested"
    return ""


def failure(name: str, status: int, retry_after: str = "") -> BackendFailure | None:
    """Why a backend did not answer a request, by its status; None where that is the client's error."""
    if status in CLIENT_ERRORS:
        return None
    backend = f"The external backend {name}"
    if status in {402, 429}:
        wait_s = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 9 else RETRY_AFTER_S
        limited = openai_errors.overloaded(
            f"{backend} refuses further requests for now.",
            retry_after_s=min(MOST_RETRY_S, wait_s),
            code="backend_rate_limited",
        )
        return BackendFailure(error=limited)
    if status in {401, 403}:  # the key may be good for other models
        return unusable(f"{backend} refuses the gateway's key", "backend_unauthorized", rests=status == 401)
    if status >= 500 or status == 408:
        return unusable(f"{backend} answers with status {status}", "backend_unavailable")
    return unusable(f"{backend} answers with status {status}, which is no answer", INVALID, rests=False)


def busy(name: str) -> BackendFailure:
    """It has as many requests as a route's namespace may have there."""
    message = f"The external backend {name} has as many requests as it takes of this namespace. Try again later."
    error = openai_errors.overloaded(message, retry_after_s=RETRY_AFTER_S, code="backend_busy")
    return BackendFailure(error=error, rests=False)


def unusable(what: str, code: str, *, rests: bool = True) -> BackendFailure:
    """A backend that does not answer."""
    error = openai_errors.unavailable(f"{what}. Try again later.", retry_after_s=RETRY_AFTER_S, code=code)
    return BackendFailure(error=error, rests=rests)


def client_error(status: int, document: bytes) -> ApiError:
    """What a backend says of a request, in our words where it has none. document: at most some kilobytes."""
    error = _object(_object(document).get("error"))
    message, param, code = (error.get(field) for field in ("message", "param", "code"))
    return openai_errors.invalid(
        message[:MOST_MESSAGE]
        if isinstance(message, str)
        else f"The external backend refuses it with status {status}.",
        param=param[:MOST_MESSAGE] if isinstance(param, str) else None,
        code=code[:MOST_MESSAGE] if isinstance(code, str) else None,
    )


class AnswerReader:
    """Reads an answer as it passes, each byte of a stream once. usage: None until it was found."""

    def __init__(self, sent: SentBody) -> None:
        self._sent = sent
        self._unread, self._searched, self._num_bytes, self._done = bytearray(), 0, 0, False
        self._num_events, self._event_bytes, self._shortest = 0, 0, MOST_EVENT_BYTES
        self.usage: Usage | None = None

    @property
    def estimated_tokens(self) -> int:
        """Of what has passed of a stream: one for each event, or for each 4 bytes by which events are longer than the
        shortest one."""
        longer = self._event_bytes - self._num_events * self._shortest
        return min(MOST_TOKENS, max(self._num_events, longer // BYTES_PER_TOKEN)) if self._num_events else 0

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets now. Raises AnswerError for more than an answer has."""
        self._num_bytes += len(chunk)
        if self._num_bytes > MOST_ANSWER_BYTES:
            raise AnswerError("it is too long")
        if self._sent.streams:
            return self._events(chunk)
        self._unread += chunk
        self._take(bytes(self._unread))
        del self._unread[:-TAIL_BYTES]
        return chunk

    def end(self) -> bytes:
        """The rest, at the end. Raises AnswerError where the answer is not whole."""
        if not self._sent.streams:
            return b""
        rest = bytes(self._unread)
        if not self._done and _data(rest) == DONE:
            return rest.rstrip(b"\r\n") + b"\n\n"
        if not self._done:
            raise AnswerError("its stream has no end")
        return rest

    def _events(self, chunk: bytes) -> bytes:
        self._unread += chunk
        passed, begin = [], 0
        for found in END_OF_EVENT.finditer(self._unread, self._searched):
            event = bytes(self._unread[begin : found.end()])
            begin = found.end()
            if not self._is_hidden(event):
                passed.append(event)
        del self._unread[:begin]
        self._searched = max(0, len(self._unread) - MOST_LINE_END)
        if len(self._unread) > MOST_EVENT_BYTES:
            raise AnswerError("an event is too long")
        return b"".join(passed)

    def _is_hidden(self, event: bytes) -> bool:
        """Takes in one event. Whether it has nothing but the usage, for which the client did not ask."""
        if DONE in event and _data(event) == DONE:
            self._done = True
        elif event.startswith(b"data:"):
            self._num_events += 1
            self._event_bytes += len(event)
            self._shortest = min(self._shortest, len(event))
        if not self._take(event):
            return False
        return self._sent.hides_usage and _object(_data(event)).get("choices") == []

    def _take(self, text: bytes) -> bool:
        """Find the last whole usage in a piece of a JSON document."""
        begins = [found.end() for found in USAGE.finditer(text)] if b'"usage"' in text else []
        fields = next(filter(None, (_beginning(text[begin:]) for begin in begins[: -MOST_TRIED - 1 : -1])), None)
        if fields is None:
            return False
        details, prompt_tokens = fields.get("prompt_tokens_details"), _count(fields.get("prompt_tokens"))
        cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
        self.usage = Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=min(prompt_tokens, cached_tokens),
            completion_tokens=_count(fields.get("completion_tokens")),
        )
        return True


def _data(event: bytes) -> bytes:
    """Of an event, by the HTML standard: its lines of data, each without one space before it."""
    lines = [line.removeprefix(b"data:") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines)


def _beginning(text: bytes) -> dict[str, Any]:
    """The JSON object with which a text begins; an empty one where it ends before."""
    try:
        found = JSONDecoder().raw_decode(text.decode(errors="replace"))[0]
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _count(value: Any) -> int:
    return min(MOST_TOKENS, max(0, value)) if type(value) is int else 0


def _object(value: Any) -> dict[str, Any]:
    """A JSON object, from its bytes where need be; an empty one for all else."""
    if isinstance(value, bytes | bytearray | memoryview | msgspec.Raw):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}
