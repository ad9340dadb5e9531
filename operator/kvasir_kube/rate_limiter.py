"""Client-side rate limiting of requests to the API server by a token bucket, as in Kubernetes' own clients.

The bucket holds a burst and refills at a steady rate. Watches are not limited: they are few.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from kvasir_kube.cluster import Cluster
from kvasir_kube.interceptor import ClusterInterceptor, T


class TokenBucket:
    """One token per request, first come, first served. qps: tokens added per second; burst: size of the bucket."""

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
        """Wait for a token and take it."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps) - 1.0
        self._at = now
        if self._tokens < 0:
            await self._sleep(-self._tokens / self._qps)


class RateLimitedCluster(ClusterInterceptor):
    """As `Cluster`, at the rate of a bucket."""

    def __init__(self, cluster: Cluster, bucket: TokenBucket) -> None:
        super().__init__(cluster)
        self._bucket = bucket

    async def _send(self, request: Callable[[], Awaitable[T]], *, writes: bool) -> T:  # noqa: ARG002 -- reads too
        await self._bucket.take()
        return await request()
