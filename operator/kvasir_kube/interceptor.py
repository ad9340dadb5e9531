"""Base of clusters that wrap another one and may delay or refuse its requests. Watches always pass."""

from collections.abc import AsyncGenerator

from kvasir_kube.cluster import Cluster, Listing, WatchEvent
from kvasir_kube.kinds import Json, Kind


class ClusterInterceptor:
    """As `Cluster`. A subclass implements `_before`, which runs before each request."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _before(self, *, writes: bool) -> None:
        """Runs before each request except a watch; an error that it raises replaces the request."""
        raise NotImplementedError

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """As of `Cluster`."""
        await self._before(writes=False)
        return await self._cluster.get(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str = "", selector: str = "") -> Listing:
        """As of `Cluster`."""
        await self._before(writes=False)
        return await self._cluster.list(kind, namespace, selector)

    def watch(
        self, kind: Kind, namespace: str = "", selector: str = "", *, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """As of `Cluster`."""
        return self._cluster.watch(kind, namespace, selector, resource_version=resource_version)

    async def create(self, kind: Kind, obj: Json, *, manager: str = "") -> Json:
        """As of `Cluster`."""
        await self._before(writes=True)
        return await self._cluster.create(kind, obj, manager=manager)

    async def apply(self, kind: Kind, obj: Json, *, manager: str, subresource: str = "") -> Json:
        """As of `Cluster`."""
        await self._before(writes=True)
        return await self._cluster.apply(kind, obj, manager=manager, subresource=subresource)

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Json, *, manager: str, subresource: str = ""
    ) -> Json:
        """As of `Cluster`."""
        await self._before(writes=True)
        return await self._cluster.merge(kind, namespace, name, patch, manager=manager, subresource=subresource)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """As of `Cluster`."""
        await self._before(writes=True)
        await self._cluster.delete(kind, namespace, name, uid=uid, grace_s=grace_s)
