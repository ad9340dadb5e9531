"""The set of prefixes in the cache and its last changes, from which the API process answers readers of `/state`.

Owned by the engine's client, so that no reader costs the engine's thread anything. Pure.
"""

from collections import deque
from itertools import islice
from typing import Final

from kvasir_api.prefix_digest import WHOLE, PrefixSet, split
from kvasir_api.state import PrefixDigest
from kvasir_runtime.engine_reports import PrefixChanges

MOST_CHANGES: Final = 16_384
"""A reader that lags by more gets the whole set, at most four times as large."""


class PrefixLog:
    """Empty until the engine sends the whole set. most_changes: kept for readers."""

    __slots__ = ("_last", "_sequence", "_set")

    def __init__(self, most_changes: int = MOST_CHANGES) -> None:
        self._set, self._sequence = PrefixSet(), 0
        self._last: deque[bytes] = deque(maxlen=most_changes)

    def take(self, changes: PrefixChanges) -> None:
        """Follow the engine."""
        hashes = split(changes.hashes)
        self._sequence = changes.sequence
        if changes.whole:
            self._set = PrefixSet(hashes)
            self._last.clear()
            return
        for route_hash in hashes:
            self._set.toggle(route_hash)
        self._last.extend(hashes)

    def digest(self, after: int | None = None) -> PrefixDigest:
        """The document. after: the last change that its reader has, or WHOLE; None for one that takes no hashes."""
        added, removed = b"", b""
        if after is None:
            after = self._sequence
        else:
            behind = self._sequence - after
            changed = self._changed(behind) if 0 <= behind <= len(self._last) else None
            if after == WHOLE or changed is None or len(changed) > len(self._set.hashes):
                after, added = WHOLE, b"".join(self._set.hashes)
            else:
                added = b"".join(route_hash for route_hash in changed if route_hash in self._set.hashes)
                removed = b"".join(route_hash for route_hash in changed if route_hash not in self._set.hashes)
        return PrefixDigest(
            sequence=self._sequence,
            entries=len(self._set.hashes),
            checksum=self._set.checksum,
            after=after,
            added=added,
            removed=removed,
        )

    def _changed(self, count: int) -> list[bytes]:
        """Hashes that differ by the last so many changes: those that changed an odd number of times."""
        changed: dict[bytes, None] = {}
        for route_hash in islice(self._last, len(self._last) - count, None):
            if route_hash in changed:
                del changed[route_hash]
            else:
                changed[route_hash] = None
        return list(changed)
