"""Who may change something by the ops port: drain, forget, name peers; and who may read the prompts that clients share.
Other reading (probes, `/state`) is open.

With `--ops-key-file` a call needs a token: one that the operator has signed for this process and this call
(`kvasir_api.ops_tokens`), or one of the file's. From the same machine or pod, where a caller has the address that it
calls, none is needed: a process there can end this one. Without the file only calls over loopback are accepted. A
caller whose address is unknown is from elsewhere: a connection that is reset early has none, and its call is read.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvasir_api import names
from kvasir_api.ops_tokens import PUBLIC_PREFIX, SCHEME, Verifier
from kvasir_runtime.server.body_reader import BODY_TIMEOUT_S
from kvasir_runtime.server.json_response import json_response
from kvasir_runtime.server.key_file import KeyFile

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
GUARDED: Final = frozenset({names.PATH_PREFIXES})
"""Paths that are no one's to read without a token: what is there are token ids of prompts."""
MAX_BODY_BYTES: Final = 65_536
MIN_CHARACTERS: Final = 16
"""Of a token of the file: less could be guessed."""


@dataclass(frozen=True, slots=True)
class OpsKeys:
    """public: texts of keys that verify what is signed. tokens: SHA-256 of those that are sent as they are."""

    public: tuple[str, ...] = ()
    tokens: tuple[bytes, ...] = ()


class _RefusedCallError(Exception):
    """status and why: of the response."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status

    def response(self) -> Response:
        """Ends the connection, as what is left of a body is not read."""
        response = json_response({"error": str(self)}, status=self.status)
        response.headers["connection"] = "close"
        if self.status == 401:
            response.headers["www-authenticate"] = SCHEME.strip()
        return response


class OpsGuard:
    """Before the application of the ops port. keys: of `--ops-key-file`. instance: of this process. wall: seconds since
    the epoch. body_s: seconds for the body of a call.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyFile[OpsKeys],
        instance: str,
        wall: Callable[[], float] = time.time,
        body_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self._app, self._keys, self._body_s = app, keys, body_s
        self._verifier = Verifier(instance, wall=wall)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI requires."""
        if scope["type"] != "http" or (scope["method"] in READING and scope["path"] not in GUARDED):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._accepted(scope, receive)
        except _RefusedCallError as refused:
            await refused.response()(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    async def _accepted(self, scope: Scope, receive: Receive) -> bytes:
        """The body, which is read only for who may call, so that no other occupies memory. Raises _RefusedCallError."""
        given, length = _header(scope, b"authorization"), _header(scope, b"content-length")
        known = self._is_local(scope) or self._has_token(given)
        if not known and not self._keys.watched:
            raise _RefusedCallError(403, "without --ops-key-file this is accepted over loopback only")
        if not known and (why := self._why_not_signed(scope, given, None)):
            raise _RefusedCallError(401, why)
        if length.isdecimal() and int(length) > MAX_BODY_BYTES:
            raise _too_long()
        try:
            async with asyncio.timeout(self._body_s):
                body = await _body(receive)
        except TimeoutError as error:
            raise _RefusedCallError(408, f"the body did not arrive within {self._body_s:g} s") from error
        if not known and (why := self._why_not_signed(scope, given, body)):
            raise _RefusedCallError(401, why)
        return body

    def _is_local(self, scope: Scope) -> bool:
        if scope["client"] is None or scope["server"] is None:
            return False
        caller = _address(scope["client"][0])
        return caller == _address(scope["server"][0]) if self._keys.watched else caller.is_loopback

    def _has_token(self, given: str) -> bool:
        digest = hashlib.sha256(given.removeprefix(SCHEME).encode("latin-1")).digest()
        return any(hmac.compare_digest(digest, token) for token in self._keys.current.tokens)

    def _why_not_signed(self, scope: Scope, given: str, body: bytes | None) -> str:
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        return self._verifier.refusal(given, scope["method"], target, body, self._keys.current.public)


def ops_keys(path: str) -> KeyFile[OpsKeys]:
    """Of `--ops-key-file`; nothing before the first load."""
    return KeyFile(path, parsed, OpsKeys())


def parsed(lines: list[bytes]) -> OpsKeys:
    """What the lines of a key file say. Raises ValueError for a token that is too short."""
    texts = [line.decode("latin-1") for line in lines]
    tokens = [text for text in texts if not text.startswith(PUBLIC_PREFIX)]
    if any(len(token) < MIN_CHARACTERS for token in tokens):
        raise ValueError(f"a token has fewer than {MIN_CHARACTERS} characters")
    return OpsKeys(
        public=tuple(text for text in texts if text.startswith(PUBLIC_PREFIX)),
        tokens=tuple(hashlib.sha256(token.encode("latin-1")).digest() for token in tokens),
    )


async def _body(receive: Receive) -> bytes:
    """All of it. Raises _RefusedCallError where it is too long, or ends with the connection."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _RefusedCallError(400, "the client closed the connection")
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_long()
        if not message.get("more_body", False):
            return bytes(body)


def _too_long() -> _RefusedCallError:
    return _RefusedCallError(413, "the body is too long")


def _header(scope: Scope, name: bytes) -> str:
    """The first value; empty where there is none."""
    return next((value.decode("latin-1") for field, value in scope["headers"] if field == name), "")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once, and then what comes."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


def _address(host: str) -> IPv4Address | IPv6Address:
    """Of one end of a connection."""
    address = ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
