"""Runs what takes time in threads beside the event loop: short work at once, long work in turns.

Long work, such as tokenizing megabytes, has threads of its own, which clients take in turn: however much one of them
sends, another's long text waits for one of each, and short requests wait for none.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, TypeVarTuple

from kvasir_runtime.frontend.client_turns import ClientTurns

SHORT_THREADS: Final = 4
LONG_THREADS: Final = 2
LONG_BYTES: Final = 64 * 1024
"""A body from here on is long work: some 15 ms of tokenizing."""

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class WorkerThreads:
    """The threads of a process."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(SHORT_THREADS, thread_name_prefix="short")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="long")
        self._turns = ClientTurns(LONG_THREADS)

    async def run(
        self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments, size_bytes: int, client: str
    ) -> _Result:
        """The function's result. size_bytes: of what it works on; client: whose turn it takes where that is long."""
        loop = asyncio.get_running_loop()
        if size_bytes < LONG_BYTES:
            return await loop.run_in_executor(self._short, function, *arguments)
        async with self._turns.turn(client):
            return await loop.run_in_executor(self._long, function, *arguments)
