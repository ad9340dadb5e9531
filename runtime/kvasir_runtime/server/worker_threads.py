"""Runs what takes time in threads beside the event loop: short work at once, long work in turns.

Long work, such as tokenizing megabytes, has threads of its own, which clients take in turn: however much one of them
sends, another's long text waits for one of each, and short requests wait for none.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, TypeVar, TypeVarTuple

SHORT_THREADS: Final = 4
LONG_THREADS: Final = 2
LONG_BYTES: Final = 64 * 1024
"""A body from here on is long work: some 15 ms of tokenizing."""

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class Turns:
    """So many places; where all are taken, clients get the next in turn and each client's requests in order.

    Used on one event loop.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """A place, once it is this client's turn."""
        await self._take(client)
        try:
            yield
        finally:
            self._give()

    async def _take(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # the place came together with the cancellation
                self._give()
            raise

    def _give(self) -> None:
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


class WorkerThreads:
    """The threads of a process."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(SHORT_THREADS, thread_name_prefix="short")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="long")
        self._turns = Turns(LONG_THREADS)

    async def run(
        self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments, size_bytes: int, client: str
    ) -> _Result:
        """The function's result. size_bytes: of what it works on; client: whose turn it takes where that is long."""
        loop = asyncio.get_running_loop()
        if size_bytes < LONG_BYTES:
            return await loop.run_in_executor(self._short, function, *arguments)
        async with self._turns.turn(client):
            return await loop.run_in_executor(self._long, function, *arguments)
