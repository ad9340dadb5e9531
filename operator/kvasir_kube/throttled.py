"""A cluster whose requests wait for their turn, so that no storm of ours falls upon the API server. Made by the shells.

The bucket holds a burst and refills at a steady rate, as in Kubernetes' own clients. Watches pass: they are few.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from kvasir_kube.cluster import Cluster
from kvasir_kube.passing import Passing


class Bucket:
    """Tokens, one for each request. qps: refilled per second; burst: most that are kept. In the order of asking."""

    def __init__(
        self,
        *,
        qps: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._qps, self._burst, self._clock, self._sleep = qps, float(burst), clock, sleep
        self._tokens, self._at = float(burst), clock()

    async def take(self) -> None:
        """Take one token, as soon as those who asked before have theirs."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps) - 1.0
        self._at = now
        if self._tokens < 0:
            await self._sleep(-self._tokens / self._qps)


class Throttled(Passing):
    """As `Cluster`, at the pace of a bucket."""

    def __init__(self, cluster: Cluster, bucket: Bucket) -> None:
        super().__init__(cluster)
        self._bucket = bucket

    async def _before(self, *, writes: bool) -> None:  # noqa: ARG002 -- reads cost a token as writes do
        await self._bucket.take()
