"""The document by which gateways know tenants: hashes of their keys, what each may use, and how much.

The operator writes it into one Secret of its namespace, each gateway reads it. It has no key: who reads it can check
a guess, so keys are random, and cannot use one.
"""

import hashlib
from typing import Annotated, Final

import msgspec

ENTRY: Final = "tenants"
"""Of the Secret."""
DIGEST_BYTES: Final = 32
Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]


class KeyHash(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """sha256: of the key. until: seconds since the epoch at which a key that left its Secret ends; 0 for one that is in
    it."""

    sha256: Digest
    until: float = 0.0

    def valid(self, now: float) -> bool:
        """now: seconds since the epoch."""
        return not self.until or now < self.until


class TenantGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tenant of one namespace. services: that it may use, all where it is empty. Limits are 0 where there is none;
    priority is None where requests choose it."""

    namespace: str
    name: str
    keys: tuple[KeyHash, ...] = ()
    services: tuple[str, ...] = ()
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_requests: int = 0
    priority: int | None = None
    weight: int = 1

    @property
    def id(self) -> str:
        """Unique over all namespaces."""
        return f"{self.namespace}/{self.name}"

    def may_use(self, service: str) -> bool:
        """service: name of one of its namespace."""
        return not self.services or service in self.services


class TenantKeys(msgspec.Struct, frozen=True, kw_only=True):
    """All tenants. In a namespace that has one gateways require a key; others they leave to the replicas."""

    tenants: tuple[TenantGrant, ...] = ()


def digest(key: bytes) -> bytes:
    """What a key is known by."""
    return hashlib.sha256(key).digest()


def encode(keys: TenantKeys) -> bytes:
    """The document."""
    return msgspec.json.encode(keys)


def decode(document: bytes) -> TenantKeys:
    """Raises msgspec.MsgspecError for what is none; an empty one has no tenants."""
    return msgspec.json.decode(document, type=TenantKeys) if document else TenantKeys()
