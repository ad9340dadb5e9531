"""Tenants: what separates the prefix caches of those who send requests, and how much each may have.

A tenant is the key that a request presents, or the name in a header that a trusted proxy sets. The salt follows from
what the request itself carries, so that a gateway finds the same prefixes as the pod without knowing the Secret.
"""

import re
from hashlib import blake2b, sha256
from typing import Final

from kvasir_api.hashes import OWNER_BYTES

SALT_BYTES: Final = 32
NAME: Final = re.compile(r"[A-Za-z0-9._/:@-]{1,128}")
WEIGHTS_PATTERN: Final = (
    r"^$|^[A-Za-z0-9._/:@-]{1,128}=\d{1,4}(\.\d{1,3})?(,[A-Za-z0-9._/:@-]{1,128}=\d{1,4}(\.\d{1,3})?)*$"
)


def salt_of_key(key: bytes) -> bytes:
    """The salt of the tenant that presents a key. One-way, but guesses can be checked against it: keys are random."""
    return salt_of_key_digest(sha256(key).digest())


def salt_of_key_digest(digest: bytes) -> bytes:
    """The same from the SHA-256 of the key, for those that keep no keys."""
    return _salt(b"key", digest)


def salt_of_name(name: str) -> bytes:
    """The salt of a tenant that is named by a trusted proxy."""
    return _salt(b"name", name.encode())


def salt_of_request(salt: bytes, cache_salt: str) -> bytes:
    """What separates the cache of a request from others'; it begins as the tenant's, which marks its blocks.

    salt: of the tenant, b"" where tenants share the cache. cache_salt: the field of the request's body, "" without one.
    """
    if not cache_salt:
        return salt
    digest = blake2b(salt + cache_salt.encode(), digest_size=SALT_BYTES, person=b"kvasir-salt").digest()
    return salt[:OWNER_BYTES] + digest[len(salt[:OWNER_BYTES]) :]


def weights(text: str) -> dict[str, float]:
    """Weights by tenant from "name=weight,…". Raises ValueError for a weight that is not above 0."""
    found = {}
    for part in filter(None, text.split(",")):
        name, _, weight = part.partition("=")
        found[name] = float(weight)
        if not found[name] > 0:
            raise ValueError(f"the weight of tenant {name} is {weight}, expected a number above 0")
    return found


def _salt(kind: bytes, identity: bytes) -> bytes:
    return blake2b(identity, digest_size=SALT_BYTES, salt=kind, person=b"kvasir-tenant").digest()
