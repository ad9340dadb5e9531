"""Where the events of one HTTP request wait until its task takes them.

Filled by the engine client, emptied by the server's stream. One wake-up takes all that came since the last one, so a
slow reader gets fewer, larger pieces, and the queue is bounded by the tokens of the request.
"""

import asyncio

from kvasir_runtime.wire import EngineOutput


class EventQueue:
    """Events of all sequences of one request, each with the sequence's index. Used on the event loop only."""

    __slots__ = ("_events", "_gone", "_waiter")

    def __init__(self) -> None:
        self._events: list[tuple[int, EngineOutput]] = []
        self._gone = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, index: int, event: EngineOutput) -> None:
        """Add an event and wake the reader."""
        self._events.append((index, event))
        self._wake()

    def wake(self) -> None:
        """Wake the reader without an event."""
        self._wake()

    def leave(self) -> None:
        """The client went away: the next take() returns None."""
        self._gone = True
        self._wake()

    async def take(self, timeout_s: float) -> list[tuple[int, EngineOutput]] | None:
        """All events since the last call, [] when none came in time; None once the client went away."""
        if not self._events and not self._gone:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        if self._gone:
            return None
        events, self._events = self._events, []
        return events

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
