"""Which of its keys the operator signs calls to pods with, which of them pods trust, and when a new one is due: by age.

A new key is published first, and signs once every pod has read it; the one before stays trusted until nothing that it
has signed is of use any more. Called by `loop.signing_secret`. Pure: the time is given.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

ROTATED_AFTER_S: Final = 30 * 86_400.0
OVERLAP_S: Final = 3_600.0
"""From a key's making until it signs, and from then until the one before goes. The kubelet writes an annotation into a
pod's file within two minutes, and a token is of use for a quarter of an hour."""


class SigningKey(msgspec.Struct, frozen=True):
    """private: text as `ops_tokens.new_private_key` makes it. created: seconds since the epoch."""

    private: str
    created: float


def is_due(keys: Sequence[SigningKey], now: float) -> bool:
    """Whether another key is to be made. keys: the oldest first, here and below."""
    return not keys or now - keys[-1].created >= ROTATED_AFTER_S


def trusted(keys: Sequence[SigningKey], now: float) -> tuple[SigningKey, ...]:
    """Those that calls may still be signed with, or will be."""
    replaced = [now >= later.created + 2 * OVERLAP_S for later in keys[1:]]
    return tuple(key for key, is_replaced in zip(keys, [*replaced, False], strict=False) if not is_replaced)


def signing(keys: Sequence[SigningKey], now: float) -> SigningKey | None:
    """The newest that pods have read; the first one where none is so old, and None where there is none."""
    return next((key for key in reversed(keys) if now >= key.created + OVERLAP_S), keys[0] if keys else None)
