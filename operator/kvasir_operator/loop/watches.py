"""Keeps the watches running: ended or stale ones start again after growing, jittered pauses. Called by `__main__`.

Each run of the watches is a thread that ends when its stop is set; what it watches is none of our business. What a new
start cannot cure (a right that is missing, a kind that is not installed, an API server that is away) is waited for,
since the periodic lists go on meanwhile; anything else that comes back again and again ends the process.
"""

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from kvasir_kube.errors import KubeError
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.resync import Resync
from kvasir_operator.loop.telemetry import Telemetry

LOG: Final = logging.getLogger(__name__)
LOOK_S: Final = 1.0
STOP_S: Final = 10.0
WELL_S: Final = 300.0
"""Watches that lasted for so long were well: the next failure is a first one again."""
FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 60.0
MOST_FAILURES: Final = 8
"""Failures in a row that end the process; with the pauses between them that is some three minutes."""
WAITED_FOR: Final = frozenset({403, 404, 429, 500, 502, 503, 504})

Start = Callable[[threading.Event], None]
"""Runs all watches in the calling thread until the event is set. Raises KubeError when one died."""


class Watches:
    """All watches as one thing that runs. start: called in a thread of its own.

    look_s: pause between two checks for stale watches. stop_s: time for a thread to stop. sleep: pauses.
    """

    def __init__(
        self,
        start: Start,
        resync: Resync,
        telemetry: Telemetry,
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        look_s: float = LOOK_S,
        stop_s: float = STOP_S,
    ) -> None:
        self._start, self._resync, self._telemetry, self._clock = start, resync, telemetry, clock
        self._sleep, self._look_s, self._stop_s = sleep, look_s, stop_s

    async def run(self) -> None:
        """Until cancelled. Raises KubeError when starting again does not help, and at once when a thread hangs."""
        failures = 0
        while True:
            began = self._clock.steady()
            error = await self._until_ended(began)
            failures = 1 if self._clock.steady() - began > WELL_S else failures + 1
            self._telemetry.watches_ended(_word(error))
            if failures > MOST_FAILURES and error.status not in WAITED_FOR:
                raise KubeError(f"the watches failed {failures} times in a row: {error}", status=error.status)
            pause = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** (failures - 1)) * random.uniform(0.8, 1.2)
            LOG.warning("watches: %s; again in %.1f s", error, pause)
            await self._sleep(pause)

    async def _until_ended(self, began: float) -> KubeError:
        """One run: why it ended."""
        self._resync.began()
        stop = threading.Event()
        thread = _thread(self._start, stop)
        try:
            while not thread.done():
                await asyncio.wait({thread}, timeout=self._look_s)
                if not thread.done() and (missed := self._resync.stale_watches(began=began)):
                    await _stopped(thread, stop, self._stop_s)
                    return StaleWatchError(f"stale watch: it has not delivered {missed}")
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({thread}, timeout=self._stop_s)
            raise
        error = thread.result()
        if error is None:
            return KubeError("they ended by themselves")
        return error if isinstance(error, KubeError) else KubeError(f"they failed: {error!r}")


class StaleWatchError(KubeError):
    """A watch is open and delivers nothing."""


def _thread(start: Start, stop: threading.Event) -> asyncio.Future[BaseException | None]:
    """Run start in a thread that does not keep the process alive; the future holds what it raised."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            start(stop)
        except BaseException as raised:  # noqa: BLE001 - raised again by whatever awaits the future
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="watches", daemon=True).start()
    return ended


async def _stopped(thread: asyncio.Future[BaseException | None], stop: threading.Event, stop_s: float) -> None:
    """Wait for a thread whose stop is set. Raises KubeError when it does not: two must never run."""
    stop.set()
    await asyncio.wait({thread}, timeout=stop_s)
    if not thread.done():
        raise KubeError(f"the thread of the watches does not end within {stop_s:g} s")


def _word(error: KubeError) -> str:
    """The label of the metric."""
    if isinstance(error, StaleWatchError):
        return "stale"
    return {401: "unauthorized", 403: "forbidden", 404: "missing"}.get(error.status, "failed")
