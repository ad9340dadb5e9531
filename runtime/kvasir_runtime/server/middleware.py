"""The outermost layer of the http port: request ids, keys, access log, and a well-shaped answer for every failure.

Plain ASGI around the application, so that it costs a streamed chunk one function call. It knows no models.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvasir_api import http_apis, names, openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_api.state import RuntimeState
from kvasir_runtime.server.api.pooling.protocol import OUTSIDE_V1
from kvasir_runtime.server.observability import orca
from kvasir_runtime.server.observability.tracing import RequestTrace, Tracer
from kvasir_runtime.server.streaming import send_document

SANE_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
CLOSED_PREFIXES: Final = ("/v1/", http_apis.OLLAMA + "/")
CLOSED_PATHS: Final = frozenset(
    {"/v1", "/tokenize", "/detokenize", "/tokenizer_info", "/invocations", "/abort_requests", "/abort_request"}
    | {*OUTSIDE_V1}
)
IGNORED_FIELDS: Final = b"x-kvasir-ignored-fields"
NO_DRAFTS: Final = b"x-kvasir-no-drafts"
"""Why a request has no drafts where others of the replica have."""
MAX_NAMES: Final = 20
MAX_NAME: Final = 64
INSANE: Final = re.compile(r"[^A-Za-z0-9_.\[\]-]")
RETRY_COUNT: Final = names.HEADER_RETRY_COUNT.encode()
REFER: Final = names.HEADER_REFER.encode()
ORIGINAL_URL: Final = names.HEADER_ORIGINAL_URL.encode()
ATTEMPT: Final = names.HEADER_ATTEMPT.encode()
METHODS: Final = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS"})

Headers = Iterable[tuple[bytes, bytes]]

log = logging.getLogger("kvasir.requests")


class Middleware:
    """accepts_key: whether one of the keys that a request carries is valid. clock: monotonic seconds.

    snapshot: the load that a response carries on request. measure: called once per request with the route (never what a
    client wrote), the method, the status, the seconds until the end, and whether the client sent it before. ended, and
    tracing, which creates a span, None without tracing: of each request that the engine served. root_path: a prefix of
    paths that is taken off, such as "/models/a".
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        accepts_key: Callable[[Iterable[bytes]], bool],
        snapshot: Callable[[], RuntimeState],
        measure: Callable[[str, str, int, float, bool], None],
        ended: Callable[[Headers, RequestTrace], None] = lambda *_: None,
        tracing: Callable[[], Tracer | None] = lambda: None,
        root_path: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._app = app
        self._accepts_key = accepts_key
        self._snapshot = snapshot
        self._measure = measure
        self._ended, self._tracing = ended, tracing
        self._root_path = root_path
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] != "http":
            return
        started = self._clock()
        self._strip(scope)
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0
        id_headers = [b"x-request-id", *([b"request-id"] if http_apis.of(scope["path"]) == "anthropic" else [])]
        load_format = next((value for name, value in scope["headers"] if name == orca.ASKED), b"")

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                elapsed_ms = round((self._clock() - started) * 1000)
                referred = _referred(scope["headers"]) if status == HTTPStatus.TOO_MANY_REQUESTS else []
                if referred:
                    message["status"] = int(HTTPStatus.TEMPORARY_REDIRECT)
                message["headers"] = [
                    *message.get("headers", ()),
                    *referred,
                    *((name, request_id.encode()) for name in id_headers),
                    (b"openai-processing-ms", str(elapsed_ms).encode()),
                    *(orca.headers(load_format, self._snapshot()) if load_format else ()),
                    *_ignored_header(scope["state"].get("ignored_fields", ())),
                    *((NO_DRAFTS, why.encode()) for why in scope["state"].get("no_drafts", ())),
                ]
            await send(message)

        try:
            if self._opens(scope):
                await self._app(scope, receive, send_with_headers)
            else:
                await _send_error(send_with_headers, openai_errors.unauthorized(), scope)
        except Exception:
            log.exception("request failed", extra={"request_id": request_id})
            if status:
                raise  # the answer is under way: the server cuts the connection, which is how a client notices
            await _send_error(send_with_headers, openai_errors.internal(), scope)
        finally:
            elapsed_s = self._clock() - started
            _write_log(scope, status, elapsed_s)
            method = scope["method"] if scope["method"] in METHODS else "other"
            route = getattr(scope.get("route"), "path", "none")
            self._measure(route, method, status or 500, elapsed_s, _sent_again(scope["headers"]))
            trace, tracing = scope["state"].get("summary"), self._tracing()
            if trace is not None and not (status == HTTPStatus.TOO_MANY_REQUESTS and _referred(scope["headers"])):
                self._ended(scope["headers"], trace)
            if trace is not None and tracing is not None:
                tracing.record(
                    route=route,
                    method=method,
                    status=status or 500,
                    duration_s=elapsed_s,
                    headers=scope["headers"],
                    request=trace,
                )

    def _strip(self, scope: Scope) -> None:
        """Take the prefix off that a proxy leaves before our paths; nothing behind looks at it."""
        root, path = self._root_path, scope["path"]
        if root and path.startswith(root + "/"):
            scope["path"] = path.removeprefix(root)
            scope["raw_path"] = scope["path"].encode()

    def _opens(self, scope: Scope) -> bool:
        """Whether the request may pass. The key that opens is kept as the client, for those behind."""
        path = scope["path"]
        closed = path in CLOSED_PATHS or path.startswith(CLOSED_PREFIXES)
        if not closed or scope["method"] == "OPTIONS" or self._accepts_key(()):
            return True
        key = next((key for key in _keys(scope["headers"]) if self._accepts_key((key,))), None)
        if key is not None:
            scope["state"]["client"] = key.decode("latin-1")
        return key is not None


def _keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys that a request carries: a bearer token, and what Anthropic's clients send."""
    found = []
    for name, value in headers:
        scheme, _, token = value.partition(b" ")
        if name == b"x-api-key":
            found.append(value.strip())
        elif name == b"authorization" and scheme.lower() == b"bearer":
            found.append(token.strip())
    return found[:2]


def _sent_again(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """By its client, or by the gateway, which brings to another replica what one refuses."""
    for name, value in headers:
        number = value.strip().lstrip(b"0")
        if (name == RETRY_COUNT and number.isdigit()) or (name == ATTEMPT and number.isdigit() and number != b"1"):
            return True
    return False


def _referred(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Of a response that would be 429: where a gateway decides about the request again. Empty without one, and where
    it had no picker to decide: Envoy brought the request back as it was, and would pass the last 307 on."""
    found = dict(headers)
    return [(b"location", found[REFER])] if REFER in found and ORIGINAL_URL not in found else []


async def _send_error(send: Send, error: ApiError, scope: Scope) -> None:
    await send_document(send, *http_apis.error_response(error, scope["path"]))


def _request_id(scope: Scope) -> str:
    """The client's own id where it is sane, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and SANE_ID.fullmatch(value):
            return str(value.decode())
    return uuid.uuid4().hex


def _ignored_header(names: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Fields of the body that had no effect, bounded, and in characters that a header may have."""
    if not names:
        return []
    shown = [INSANE.sub("?", name[:MAX_NAME]) for name in names[:MAX_NAMES]]
    more = [f"and {len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else []
    return [(IGNORED_FIELDS, ", ".join([*shown, *more]).encode())]


def _write_log(scope: Scope, status: int, elapsed_s: float) -> None:
    """One line per request: never a prompt, an answer or a key. Health checks and scrapes are too many to log."""
    generates = scope["path"].startswith(CLOSED_PREFIXES) or scope["path"] in OUTSIDE_V1
    if not log.isEnabledFor(logging.INFO) or not generates:
        return
    fields: dict[str, object] = {
        "request_id": scope["state"]["request_id"],
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "duration_s": round(elapsed_s, 4),
    }
    if scope["state"].get("tenant"):
        fields["tenant"] = scope["state"]["tenant"]
    for _, ignored in _ignored_header(scope["state"].get("ignored_fields", ())):
        fields["ignored_fields"] = ignored.decode()
    summary = scope["state"].get("summary")
    if summary is not None:
        fields |= {
            "finish_reason": summary.reason,
            "prompt_tokens": summary.prompt_tokens,
            "completion_tokens": summary.completion_tokens,
            "cached_tokens": summary.cached_tokens,
            "first_token_s": round(summary.first_token_s, 4),
        }
    log.info("request", extra=fields)
