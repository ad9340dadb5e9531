"""Which of its keys the operator signs calls to pods with, which of them pods trust, and when a new one is due: by age.

A new key is published first, and signs once every pod has read it; the one before stays trusted until nothing that it
has signed is of use any more. Called by `loop.signing_secret`. Pure: the time is given.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from kvasir_api.ops_tokens import TOLERANCE_S

ROTATED_AFTER_S: Final = 30 * 86_400.0
OVERLAP_S: Final = 3_600.0
"""From a key's making until it signs, and from then until the one before goes. The kubelet writes an annotation into a
pod's file within two minutes, and a token is of use for a quarter of an hour."""


class Dated(Protocol):
    """created: seconds since the epoch."""

    @property
    def created(self) -> float: ...


Key = TypeVar("Key", bound=Dated)


class SigningKey(msgspec.Struct, frozen=True):
    """private: text as `ops_tokens.new_private_key` makes it. created: seconds since the epoch."""

    private: str
    created: float


def is_due(keys: Sequence[Dated], now: float, *, after_s: float = ROTATED_AFTER_S) -> bool:
    """Whether another key is to be made. keys: in the order of their making, here and below. after_s: age of the last.

    Also where the last one is of the future: it was made by a clock that was ahead, and would not age for as long.
    """
    return not keys or now - keys[-1].created >= after_s or is_ahead(keys[-1].created, now)


def is_ahead(created: float, now: float) -> bool:
    """Whether something was made later than now by more than clocks may differ."""
    return created > now + TOLERANCE_S


def trusted(keys: Sequence[Key], now: float, *, kept_s: float = OVERLAP_S) -> tuple[Key, ...]:
    """Those that calls may still be signed with, or will be. kept_s: for how long what a key has signed is of use when
    the next one signs."""
    replaced = [now >= later.created + OVERLAP_S + kept_s for later in keys[1:]]
    return tuple(key for key, is_replaced in zip(keys, [*replaced, False], strict=False) if not is_replaced)


def signing(keys: Sequence[Key], now: float) -> Key | None:
    """The newest that pods have read; the first one where none is so old, and None where there is none."""
    return next((key for key in reversed(keys) if now >= key.created + OVERLAP_S), keys[0] if keys else None)
