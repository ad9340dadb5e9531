"""Responses that are kept in memory: bounded in number, bytes and age; the least recently used go first.

Written by the serializer and the routes on the event loop, read by worker threads that prepare a request, so
it is locked. It holds documents only, and they are lost with the process.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvasir_runtime.server.api.responses.items import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """max_bytes: of all responses together as JSON, with the conversations before them; 0 keeps nothing."""

    max_bytes: int
    max_responses: int = 10_000
    max_age_s: float = 30 * 86_400.0


@dataclass(slots=True, kw_only=True)
class StoredResponse:
    """One response. items: of the whole conversation up to its request. open: it is still being made. owner:
    identity of the tenant that alone may find it.

    document is replaced, never changed.
    """

    document: dict[str, Any]
    items: list[Item]
    size_bytes: int
    open: bool = True
    owner: bytes = field(default=b"", repr=False)
    created_s: float = field(default=0.0)

    @property
    def conversation(self) -> list[Item]:
        """What a next response goes on with."""
        output: list[Item] = self.document["output"]
        return [*self.items, *output]


class ResponseStore:
    """clock: monotonic seconds."""

    def __init__(self, bounds: StoreLimits, clock: Callable[[], float]) -> None:
        self._bounds = bounds
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._size = 0

    @property
    def keeps(self) -> bool:
        """Whether it keeps anything at all."""
        return self._bounds.max_bytes > 0

    @property
    def size_bytes(self) -> int:
        """Of all that is kept."""
        return self._size

    def __len__(self) -> int:
        """Responses that are kept."""
        return len(self._kept)

    def put(self, response_id: str, stored: StoredResponse) -> None:
        """Keep a response; others may have to go, or this one where it is too large alone."""
        with self._lock:
            self._drop(response_id)
            stored.created_s = self._clock()
            self._kept[response_id] = stored
            self._size += stored.size_bytes
            self._shrink()

    def finish(self, response_id: str, document: dict[str, Any], added_bytes: int) -> None:
        """It is made. Nothing happens where it is no longer kept."""
        with self._lock:
            stored = self._kept.get(response_id)
            if stored is None:
                return
            stored.document, stored.open = document, False
            stored.size_bytes += added_bytes
            self._size += added_bytes
            self._shrink()

    def get(self, response_id: str, owner: bytes = b"") -> StoredResponse | None:
        """The response, which is used by that; None when it is not kept, or not the owner's."""
        with self._lock:
            stored = self._kept.get(response_id)
            if stored is None or stored.owner != owner:
                return None
            if self._is_old(stored):
                self._drop(response_id)
                return None
            self._kept.move_to_end(response_id)
            return stored

    def delete(self, response_id: str) -> bool:
        """Whether it was kept."""
        with self._lock:
            return self._drop(response_id)

    def _shrink(self) -> None:
        """Remove the least recently used; an old one that was used since is removed at its next use."""
        bounds = self._bounds
        while self._kept:
            first = next(iter(self._kept))
            over = self._size > bounds.max_bytes or len(self._kept) > bounds.max_responses
            if not over and not self._is_old(self._kept[first]):
                return
            self._drop(first)

    def _is_old(self, stored: StoredResponse) -> bool:
        return self._clock() - stored.created_s > self._bounds.max_age_s

    def _drop(self, response_id: str) -> bool:
        stored = self._kept.pop(response_id, None)
        if stored is None:
            return False
        self._size -= stored.size_bytes
        return True
