"""Base of clusters that wrap another one and may delay, refuse or give up its requests. Watches always pass."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from kvasir_kube.cluster import Cluster, Known, Listing, WatchEvent, as_it_is, none_known
from kvasir_kube.kinds import Json, Kind

T = TypeVar("T")


class ClusterInterceptor:
    """As `Cluster`. A subclass implements `_send`, through which each request goes."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def _send(self, request: Callable[[], Awaitable[T]], *, writes: bool) -> T:
        """Make a request, which is none before it is called; an error that this raises replaces it."""
        raise NotImplementedError

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """As of `Cluster`."""
        return await self._send(lambda: self._cluster.get(kind, namespace, name), writes=False)

    async def list(
        self,
        kind: Kind,
        namespace: str = "",
        selector: str = "",
        *,
        known: Known = none_known,
        transform: Callable[[Json], Json] = as_it_is,
    ) -> Listing:
        """As of `Cluster`."""
        return await self._send(
            lambda: self._cluster.list(kind, namespace, selector, known=known, transform=transform), writes=False
        )

    def watch(
        self, kind: Kind, namespace: str = "", selector: str = "", *, resource_version: str
    ) -> AsyncGenerator[WatchEvent, None]:
        """As of `Cluster`."""
        return self._cluster.watch(kind, namespace, selector, resource_version=resource_version)

    async def create(self, kind: Kind, obj: Json, *, manager: str = "") -> Json:
        """As of `Cluster`."""
        return await self._send(lambda: self._cluster.create(kind, obj, manager=manager), writes=True)

    async def apply(self, kind: Kind, obj: Json, *, manager: str, subresource: str = "") -> Json:
        """As of `Cluster`."""
        return await self._send(
            lambda: self._cluster.apply(kind, obj, manager=manager, subresource=subresource), writes=True
        )

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Json, *, manager: str, subresource: str = ""
    ) -> Json:
        """As of `Cluster`."""
        return await self._send(
            lambda: self._cluster.merge(kind, namespace, name, patch, manager=manager, subresource=subresource),
            writes=True,
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None) -> None:
        """As of `Cluster`."""
        await self._send(lambda: self._cluster.delete(kind, namespace, name, uid=uid, grace_s=grace_s), writes=True)
