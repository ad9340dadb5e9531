"""Keys of continuation tokens on their way from the operator to one process, sealed so that no other can read them.

The operator derives the keys of a service, and sends them over the plaintext `ops` port in a signed call
(`ops_tokens`). Sealed by HPKE (RFC 9180, base mode) to a key that the process made at its start and publishes in
`/state`: X25519, HKDF-SHA256 and ChaCha20-Poly1305, bound to the instance of the process,
which names its service too.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hpke import Suite

KEY_BYTES: Final = 32
"""Of each key."""
MOST_KEYS: Final = 8
MOST_CHARACTERS: Final = 1024
"""Of a sealed text."""
_CONTEXT: Final = b"kvasir continuation keys 1\0"


class SealingKey:
    """Of one process: what is sealed to it, it alone can open. public: in base64, for `/state`."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = X25519PrivateKey.generate()
        self.public = base64.b64encode(self._private.public_key().public_bytes_raw()).decode()

    def opened(self, text: str, instance: str) -> tuple[bytes, ...]:
        """Keys that were sealed to this process. Raises ValueError for any other text."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(text, altchars=b"-_", validate=True)
            packed = _suite().decrypt(raw, self._private, info=_CONTEXT + instance.encode())
            keys = msgspec.msgpack.decode(packed, type=tuple[bytes, ...])
        except (ValueError, binascii.Error, InvalidTag, msgspec.MsgspecError) as error:
            raise ValueError("the keys are not sealed to this process") from error
        if not 0 < len(keys) <= MOST_KEYS or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"expected 1 to {MOST_KEYS} keys of {KEY_BYTES} bytes")
        return keys


def sealed(keys: Sequence[bytes], public: str, instance: str) -> str:
    """Text for the process with that key and instance. Raises ValueError where public is no key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    key = X25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
    raw = _suite().encrypt(msgspec.msgpack.encode(tuple(keys)), key, info=_CONTEXT + instance.encode())
    return base64.urlsafe_b64encode(raw).decode()


def keys_digest(keys: Sequence[bytes]) -> str:
    """A hexadecimal digest that identifies a list of keys without revealing them; empty for no keys."""
    return hashlib.blake2b(b"".join(keys), digest_size=8, person=b"kvasir-keys-name").hexdigest() if keys else ""


def _suite() -> "Suite":
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
