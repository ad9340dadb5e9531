"""Keys that wait for a reconcile: each at most once, each worked on by one worker at a time, failures with a pause."""

import asyncio
import heapq
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from kvasir_kube.errors import KubeError
from kvasir_kube.kinds import Key

LOG: Final = logging.getLogger(__name__)
DEBOUNCE_S: Final = 0.05
FIRST_BACKOFF_S: Final = 0.5
LAST_BACKOFF_S: Final = 60.0
WORKERS: Final = 32
"""They wait for the API server most of the time, and --kube-api-qps bounds what they send."""
HASTE_S: Final = 5.0
"""After a failure a change is tried at most this often, unless the server required a longer pause; without a change the
whole pause passes."""


class Workqueue:
    """A set of keys with the time at which each is due. Times are of the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._busy: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._pauses: dict[Key, tuple[float, float]] = {}
        self._news = asyncio.Event()

    def mark(self, key: Key, delay_s: float = DEBOUNCE_S, *, news: bool = True) -> None:
        """Reconcile the key soon; an earlier time that is set already stays. news: something changed; otherwise only
        time has passed, which does not shorten the pause after a failure."""
        for_news, whole = self._pauses.get(key, (0.0, 0.0))
        due = max(self._clock() + delay_s, for_news if news else whole)
        if due < self._due.get(key, math.inf):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
        self._news.set()

    def pause(self, key: Key, pause_s: float) -> None:
        """Called by the key's own reconcile, which then succeeds: the key comes again after the pause, a tenth less at
        random, or for news at most every `HASTE_S`. The pause replaces an earlier time, as after a failure."""
        now, pause_s = self._clock(), pause_s * random.uniform(0.9, 1.0)
        self._due[key] = now + pause_s
        self._pauses[key] = (now + min(pause_s, HASTE_S), now + pause_s)

    def oldest_s(self) -> float:
        """How long the key that is due for longest has waited; 0 when none is."""
        now = self._clock()
        return max((now - due for due in self._due.values()), default=0.0) if self._due else 0.0

    async def run(self, reconcile: Callable[[Key], Awaitable[None]], *, workers: int = WORKERS) -> None:
        """Call reconcile for each key that is due, so many at a time, until cancelled."""
        free = asyncio.Semaphore(workers)
        async with asyncio.TaskGroup() as group:
            while True:
                await free.acquire()
                key = await self._next()
                group.create_task(self._work(key, reconcile, free))

    async def _work(self, key: Key, reconcile: Callable[[Key], Awaitable[None]], free: asyncio.Semaphore) -> None:
        self._pauses.pop(key, None)
        try:
            await reconcile(key)
            self._failures.pop(key, None)
        except KubeError as error:
            self._again(key, str(error), error.retry_after_s)
        except Exception:
            LOG.exception("%s/%s: reconcile failed", *key)
            self._again(key, "unexpected error", 0.0)
        finally:
            self._busy.discard(key)
            free.release()
            if key in self._due:
                heapq.heappush(self._heap, (self._due[key], key))
                self._news.set()

    def _again(self, key: Key, why: str, at_least_s: float) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(LAST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (failures - 1)) * random.uniform(0.8, 1.2)
        # The server requires the same pause of many clients at once.
        at_least_s *= random.uniform(1.0, 1.2)
        pause = max(pause, at_least_s)
        LOG.warning("%s/%s: %s; again in %.1f s", *key, why, pause)
        # The pause replaces an earlier time, or a storm of events would be a storm of retries.
        now = self._clock()
        self._due[key] = now + pause
        self._pauses[key] = (now + max(at_least_s, min(pause, HASTE_S)), now + pause)

    async def _next(self) -> Key:
        while True:
            self._drop_outdated()
            pause = self._heap[0][0] - self._clock() if self._heap else None
            if pause is not None and pause <= 0:
                _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._busy.add(key)
                return key
            self._news.clear()
            try:
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with news.
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _drop_outdated(self) -> None:
        """Of the heap's first entries those that have not their key's time, and those of keys that are worked on."""
        while self._heap and (self._heap[0][1] in self._busy or self._due.get(self._heap[0][1]) != self._heap[0][0]):
            heapq.heappop(self._heap)
