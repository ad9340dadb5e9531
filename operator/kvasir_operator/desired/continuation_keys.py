"""The keys with which replicas of a service sign continuation tokens, derived from those of the operator's calls.

So they need no Secret of their own, each service has others, and they rotate with the keys that they come from: a new
one is accepted for an hour before it signs. Pure: the time is given. Called by `loop.signing_secret`.
"""

import base64
import hashlib
from collections.abc import Sequence

from kvasir_api.sealed_keys import KEY_BYTES
from kvasir_operator.desired.signing_keys import SigningKey, signing, trusted


def continuation_keys(keys: Sequence[SigningKey], service_uid: str, now: float) -> tuple[bytes, ...]:
    """Keys of 32 bytes, that which signs first; none while there are no keys. keys: the oldest first.

    Keyed BLAKE2b (RFC 7693) of the service's uid: who knows the keys of one service learns nothing of another's.
    """
    first = signing(keys, now)
    ordered = [first, *(key for key in trusted(keys, now) if key is not first)] if first else []
    return tuple(
        hashlib.blake2b(
            service_uid.encode(), key=base64.b64decode(key.private), digest_size=KEY_BYTES, person=b"kvasir-continue"
        ).digest()
        for key in ordered
    )
