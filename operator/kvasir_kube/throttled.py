"""A cluster whose requests wait for their turn, so that no storm of ours falls upon the API server. Made by the shells.

The bucket holds a burst and refills at a steady rate, as in Kubernetes' own clients. Watches pass: they are few.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

from kvasir_kube.cluster import Cluster, Listing, WatchEvent
from kvasir_kube.kinds import Json, Kind


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


class Throttled:
    """As `Cluster`, at the pace of a bucket."""

    def __init__(self, cluster: Cluster, bucket: Bucket) -> None:
        self._cluster, self._bucket = cluster, bucket

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """As of `Cluster`."""
        await self._bucket.take()
        return await self._cluster.get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str = "", selector: str = "") -> Listing:
        """As of `Cluster`."""
        await self._bucket.take()
        return await self._cluster.list(kind, namespace, selector)

    def watch(
        self, kind: Kind, namespace: str = "", selector: str = "", *, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """As of `Cluster`."""
        return self._cluster.watch(kind, namespace, selector, resource_version=resource_version)

    async def create(self, kind: Kind, obj: Json) -> Json:
        """As of `Cluster`."""
        await self._bucket.take()
        return await self._cluster.create(kind, obj)

    async def apply(self, kind: Kind, obj: Json, *, manager: str, subresource: str = "") -> Json:
        """As of `Cluster`."""
        await self._bucket.take()
        return await self._cluster.apply(kind, obj, manager=manager, subresource=subresource)

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Json, *, manager: str) -> Json:
        """As of `Cluster`."""
        await self._bucket.take()
        return await self._cluster.merge(kind, namespace, name, patch, manager=manager)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """As of `Cluster`."""
        await self._bucket.take()
        await self._cluster.delete(kind, namespace, name, uid=uid, grace_s=grace_s)
