"""Turns of clients at work of which only so much is done at a time.

Used for long texts in threads and for grammars at their worker: however much one client sends, another waits for one of
each.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ClientTurns:
    """So many places; where all are taken, clients get the next in turn and each client's requests in order.

    Used on one event loop.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """A place, once it is this client's turn."""
        await self.take(client)
        try:
            yield
        finally:
            self.give()

    async def take(self, client: str) -> None:
        """Wait for a place, which give() returns."""
        if self._free:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # the place came together with the cancellation
                self.give()
            raise

    def give(self) -> None:
        """The next client's first request gets the place; the client goes behind the others."""
        while self._waiting:
            client = next(iter(self._waiting))
            queue = self._waiting.pop(client)
            future = queue.popleft()
            if queue:
                self._waiting[client] = queue
            if not future.done():
                future.set_result(None)
                return
        self._free += 1
