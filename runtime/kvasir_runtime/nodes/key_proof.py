"""How two processes prove to one another that they have the same key, before either acts on what the other sends.

The one that was called sends a random number. The caller answers with one of its own, what it is, and a code
(HMAC-SHA256) of all three; the called one answers with a code over the same numbers. Each code names the side that made
it, so that none can be sent back or used again. Frames after that are neither signed nor encrypted.
"""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from kvasir_runtime.nodes.link import Link, LinkError

NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
MOST_BYTES: Final = 262_144
"""Of a frame of the handshake. The longest field of the options has 64 KiB."""
Body = TypeVar("Body", bound=msgspec.Struct)


class WrongKeyError(Exception):
    """The other process does not have this one's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What connections are for. magic: begins the greeting. label: of the codes, so that none is of use elsewhere.

    called: what the caller expects at the other end, for messages. key: whose key it is.
    """

    magic: bytes
    label: bytes
    called: str
    key: str

    def code(self, key: bytes, side: bytes, numbers: bytes, body: bytes) -> bytes:
        """Of 32 bytes, that only who has the key can make."""
        return hmac.new(key, self.label + side + b"\0" + numbers + body, hashlib.sha256).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a caller sent. numbers: the random ones of both."""

    purpose: Purpose
    numbers: bytes
    mac: bytes
    body: bytes

    def is_by(self, key: bytes) -> bool:
        """Whether the caller has a key."""
        return hmac.compare_digest(self.mac, self.purpose.code(key, b"join", self.numbers, self.body))


def receive(link: Link, purpose: Purpose, within_s: float) -> Call:
    """The side that was called. Raises OSError, TimeoutError or LinkError for what is no caller at all."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    link.send(purpose.magic + nonce, within_s=within_s)
    raw = bytes(link.receive(MOST_BYTES, within_s=within_s))
    if len(raw) < NONCE_BYTES + MAC_BYTES:
        raise LinkError(f"{link.peer} sent {len(raw)} bytes, which are no request to join")
    mac, body = raw[NONCE_BYTES : NONCE_BYTES + MAC_BYTES], raw[NONCE_BYTES + MAC_BYTES :]
    return Call(purpose=purpose, numbers=nonce + raw[:NONCE_BYTES], mac=mac, body=body)


def answer(link: Link, call: Call, key: bytes, body: bytes, within_s: float) -> None:
    """Raises OSError."""
    link.send(call.purpose.code(key, b"answer", call.numbers, body) + body, within_s=within_s)


def call(
    link: Link, purpose: Purpose, key: bytes, body: bytes, *, within_s: float, answer_s: float
) -> tuple[bytes, bytes]:
    """The caller's side: the body of the answer, and the random numbers of both.

    within_s: for the greeting, and to send the call. answer_s: for all of it, the answer included. Raises WrongKeyError
    where the other process cannot prove that it has the key, OSError, TimeoutError and LinkError.
    """
    begun = time.monotonic()
    greeting = bytes(link.receive(MOST_BYTES, within_s=within_s))
    if not greeting.startswith(purpose.magic) or len(greeting) != len(purpose.magic) + NONCE_BYTES:
        raise LinkError(f"{link.peer} is no {purpose.called} of this version")
    nonce = secrets.token_bytes(NONCE_BYTES)
    numbers = greeting[len(purpose.magic) :] + nonce
    link.send(nonce + purpose.code(key, b"join", numbers, body) + body, within_s=_left_s(begun + within_s))
    raw = bytes(link.receive(MOST_BYTES, within_s=_left_s(begun + answer_s)))
    mac, answered = raw[:MAC_BYTES], raw[MAC_BYTES:]
    if not hmac.compare_digest(mac, purpose.code(key, b"answer", numbers, answered)):
        raise WrongKeyError(f"{link.peer} does not have the key of {purpose.key}")
    return answered, numbers


def decoded(link: Link, body: bytes, kind: type[Body]) -> Body:
    """What a proven body says. Raises LinkError where it is not of this kind."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise LinkError(f"{link.peer} is of another version: {error}") from error


def _left_s(deadline: float) -> float:
    """Without any what has come is read still, and sent what can be at once."""
    return max(deadline - time.monotonic(), 0.0)
