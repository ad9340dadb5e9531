"""Who may change something by the ops port: drain, forget, name peers. Reading (probes, `/state`) is open.

With `--ops-key-file` a call needs a token: one that the operator has signed for this process and this call
(`kvasir_api.ops_tokens`), or one of the file's. From the same machine or pod, where a caller has the address that it
calls, none is needed: a process there can end this one. Without the file only calls over loopback are accepted.
"""

import hashlib
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvasir_api.ops_tokens import PUBLIC_PREFIX, SCHEME, Verifier
from kvasir_runtime.server.json_response import json_response
from kvasir_runtime.server.key_file import KeyFile

READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY_BYTES: Final = 65_536
MIN_CHARACTERS: Final = 16
"""Of a token of the file: less could be guessed."""


@dataclass(frozen=True, slots=True)
class OpsKeys:
    """public: texts of keys that verify what is signed. tokens: SHA-256 of those that are sent as they are."""

    public: tuple[str, ...] = ()
    tokens: tuple[bytes, ...] = ()


class OpsGuard:
    """Before the application of the ops port. keys: of `--ops-key-file`. instance: of this process. wall: seconds since
    the epoch.
    """

    def __init__(
        self, app: ASGIApp, *, keys: KeyFile[OpsKeys], instance: str, wall: Callable[[], float] = time.time
    ) -> None:
        self._app, self._keys = app, keys
        self._verifier = Verifier(instance, wall=wall)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI requires."""
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        status, why = (413, "the body is too long") if body is None else self._refusal(scope, body)
        if body is None or why:
            response = json_response({"error": why}, status=status)
            if status == 401:
                response.headers["www-authenticate"] = SCHEME.strip()
            await response(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    def _refusal(self, scope: Scope, body: bytes) -> tuple[int, str]:
        """Status and sentence of the error; the sentence is empty where the call is accepted."""
        caller, called = _address(scope["client"]), _address(scope["server"])
        if not self._keys.watched:
            accepted = caller is None or caller.is_loopback
            return 403, "" if accepted else "without --ops-key-file this is accepted over loopback only"
        if caller is None or caller == called:
            return 401, ""
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
        keys, digest = self._keys.current, hashlib.sha256(given.removeprefix(SCHEME).encode("latin-1")).digest()
        if any(hmac.compare_digest(digest, token) for token in keys.tokens):
            return 401, ""
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        return 401, self._verifier.refusal(given, scope["method"], target, body, keys.public)


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


async def _body(receive: Receive) -> bytes | None:
    """All of it; None where it is too long."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once, and then what comes."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


def _address(endpoint: tuple[str, int | None] | None) -> IPv4Address | IPv6Address | None:
    """Of one end of a connection; None for a socket of the file system."""
    if endpoint is None or endpoint[1] is None:
        return None
    address = ip_address(endpoint[0].partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
