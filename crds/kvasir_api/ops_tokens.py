"""Signed tokens for calls that change something on another process' ops port: made by the operator, checked by pods.

A `Signer` makes one for each call, and a `Verifier` in the called process accepts it once. Keys are Ed25519 (RFC 8032):
the caller holds the private one, and the called process the public ones, which are no secret. A token names the process
that it is for by the `instance` of its `/state`, the method, the target and the body, so it is of no use for another
call or elsewhere. Its number is the time of its making in microseconds. Clocks may differ by TOLERANCE_S; what was
accepted is remembered whatever the clock says, so that none is accepted twice.

A process of another kind that is called in the same way, such as a gateway, has a `Verifier` of its own.
"""

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

PUBLIC_PREFIX: Final = "ed25519:"
"""Begins the text of a public key; what follows is its 32 bytes in base64."""
SCHEME: Final = "Bearer "
TOLERANCE_S: Final = 900.0
"""By which the clocks of caller and called may differ: a node without NTP is off by minutes, not by hours."""
MOST_REMEMBERED: Final = 4096
MOST_CHARACTERS: Final = 4096
_CONTEXT: Final = b"kvasir ops token 1\0"
"""Before what is signed, so that no signature made for something else is a token."""


class _Claims(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """number: microseconds since the epoch. body: SHA-256 of it."""

    instance: str
    method: str
    target: str
    body: bytes
    number: int
    nonce: bytes


class Signer:
    """private: text of `new_private_key`. wall: seconds since the epoch. random: so many random bytes."""

    def __init__(self, private: str, *, wall: Callable[[], float], random: Callable[[int], bytes]) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(private))
        self._wall, self._random = wall, random

    def authorization(self, instance: str, method: str, target: str, body: bytes = b"") -> str:
        """The Authorization header of one call. target: path and query as they are sent."""
        digest, number = hashlib.sha256(body).digest(), int(self._wall() * 1e6)
        claims = msgspec.msgpack.encode(_Claims(instance, method, target, digest, number, self._random(8)))
        signature = self._key.sign(_CONTEXT + claims)
        return f"{SCHEME}{base64.urlsafe_b64encode(signature + claims).decode()}"


class Verifier:
    """Of one process. instance: its name in `/state`. wall: seconds since the epoch."""

    def __init__(self, instance: str, *, wall: Callable[[], float]) -> None:
        self._instance, self._wall = instance, wall
        self._accepted: dict[bytes, int] = {}
        self._floor = 0
        """The largest number that was forgotten: what is not larger may have been accepted before."""

    def refusal(self, authorization: str, method: str, target: str, body: bytes | None, public: Iterable[str]) -> str:
        """Why a call is refused; empty where it is not, which counts as its one use. public: texts of public keys.

        body: None before it was read; then the rest is judged, and nothing counts.
        """
        signed = _decoded(authorization)
        if signed is None:
            return "a signed token is required"
        signature, claims = signed[:64], signed[64:]
        if not any(_is_signed(signature, claims, key) for key in public):
            return "the token is not signed by a key that is trusted here"
        try:
            found = msgspec.msgpack.decode(claims, type=_Claims)
        except msgspec.MsgspecError:
            return "the token is of another version"
        if found.instance != self._instance:
            return "the token is for another process"
        digest = found.body if body is None else hashlib.sha256(body).digest()
        if (found.method, found.target, found.body) != (method, target, digest):
            return "the token is for another call"
        if abs(self._wall() - found.number / 1e6) > TOLERANCE_S:
            return f"the token is older than {TOLERANCE_S:.0f} s, or the clocks differ by that"
        if claims in self._accepted or found.number <= self._floor:
            return "the token was used before"
        if body is not None:
            self._remember(claims, found.number)
        return ""

    def _remember(self, claims: bytes, number: int) -> None:
        self._accepted[claims] = number
        if len(self._accepted) > MOST_REMEMBERED:
            oldest = min(self._accepted, key=self._accepted.__getitem__)
            self._floor = self._accepted.pop(oldest)


def new_private_key(random: Callable[[int], bytes]) -> str:
    """The text of a key that signs. random: bytes fit for keys, such as `secrets.token_bytes`."""
    return base64.b64encode(random(32)).decode()


def public_key(private: str) -> str:
    """The text of the key that verifies what a private one signs. Raises ValueError for no key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = Ed25519PrivateKey.from_private_bytes(base64.b64decode(private, validate=True))
    except (ValueError, binascii.Error) as error:
        raise ValueError("the text is no Ed25519 private key") from error
    return f"{PUBLIC_PREFIX}{base64.b64encode(key.public_key().public_bytes_raw()).decode()}"


def _decoded(authorization: str) -> bytes | None:
    if not authorization.startswith(SCHEME) or len(authorization) > MOST_CHARACTERS:
        return None
    try:
        return base64.b64decode(authorization.removeprefix(SCHEME), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None


def _is_signed(signature: bytes, claims: bytes, public: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix(PUBLIC_PREFIX), validate=True))
        key.verify(signature, _CONTEXT + claims)
    except (ValueError, binascii.Error, InvalidSignature):
        return False
    return True
