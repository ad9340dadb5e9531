"""An event loop whose time passes only while nothing can be done: hours in a moment, every pause as long as it says.

For whole loops of ours over fakes; nothing in it may wait for a socket, a process or a thread.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

WALL: Final = 1_800_000_000.0


class _Jump(selectors.DefaultSelector):
    """Instead of waiting it moves the loop's time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("everything waits for something that nobody will do")
        if not found and timeout:
            self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock is the selector's."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


class LoopClock:
    """Steady and wall seconds of the loop that runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def steady(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return WALL + self._loop.time()


T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def elapse(seconds: float) -> None:
    """So much virtual time passes."""
    await asyncio.sleep(seconds)
