"""Takes events from the thread of the watches to the operator's event loop, in their order.

A wake-up of another thread's loop costs a system call on both sides and the interpreter's lock. While events come
faster than the loop has its turn, one wake-up is for all of them. A list brings thousands of whole objects at once,
nearly all of which the store has: what waits here is memory, so that as many are taken in a turn as there is time for.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from kvasir_kube.kinds import Json, Kind

TURN_S: Final = 0.02
"""For so long events are taken before what else waits in the loop has its turn."""


class WatchEvents:
    """`put` is called in any thread, `take` in the loop's. clock: steady seconds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        take: Callable[[Kind, str, Json], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._take, self._clock = loop, take, clock
        self._events: deque[tuple[Kind, str, Json]] = deque()
        self._woken = False

    def put(self, kind: Kind, verb: str, obj: Json) -> None:
        """An event: its kind, its verb and its object. Raises RuntimeError when the loop is closed."""
        self._events.append((kind, verb, obj))
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._take_some)

    def _take_some(self) -> None:
        # Before the first look: what is put after the last one must wake the loop again.
        self._woken = False
        until = self._clock() + TURN_S
        try:
            while self._events:
                self._take(*self._events.popleft())
                if self._clock() >= until:
                    return
        finally:
            if self._events and not self._woken:
                self._woken = True
                self._loop.call_soon(self._take_some)
