"""An informer: a cache of the objects of one kind, kept by a list and then a watch. Gateway and process node use it.

Level-triggered: a reader looks at `objects`; `on_change` gets the key of an object that may have changed. A missed or
repeated call changes nothing, and fields that `transform` drops cause no call. Decides nothing about the objects.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from kvasir_kube.cluster import Cluster, WatchEvent
from kvasir_kube.errors import ExpiredError, KubeError
from kvasir_kube.kinds import Json, Key, Kind, key, strip_managed_fields

LOG: Final = logging.getLogger(__name__)
FIRST_BACKOFF_S: Final = 0.2
LAST_BACKOFF_S: Final = 5.0


def _ignore(_: Key) -> None:
    """The default of on_change."""


class Informer:
    """Objects of one kind by key. `run()` never returns; `synced` is set after the first complete list."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        *,
        namespace: str = "",
        selector: str = "",
        transform: Callable[[Json], Json] = strip_managed_fields,
        on_change: Callable[[Key], None] = _ignore,
    ) -> None:
        self.objects: dict[Key, Json] = {}
        self.synced = asyncio.Event()
        self._cluster, self._kind, self._namespace, self._selector = cluster, kind, namespace, selector
        self._transform, self._on_change = transform, on_change

    async def run(self) -> None:
        """Run until cancelled; after an error list again, with growing and jittered pauses."""
        backoff = FIRST_BACKOFF_S
        version = ""
        while True:
            try:
                if not version:
                    version = await self._relist()
                version = await self._follow(version)
                backoff = FIRST_BACKOFF_S
            except ExpiredError:
                version = ""
            except KubeError as error:
                LOG.warning("%s: %s; again in about %.1f s", self._kind.plural, error, backoff)
                await asyncio.sleep(max(error.retry_after_s, backoff * random.uniform(0.5, 1.5)))
                version, backoff = "", min(backoff * 2, LAST_BACKOFF_S)

    async def _relist(self) -> str:
        listing = await self._cluster.list(self._kind, self._namespace, self._selector)
        found = {key(item): self._transform(item) for item in listing.items}
        changed = [name for name, obj in found.items() if self.objects.get(name) != obj]
        gone = [name for name in self.objects if name not in found]
        self.objects.update(found)
        for name in gone:
            del self.objects[name]
        self.synced.set()
        for name in (*changed, *gone):
            self._on_change(name)
        return listing.resource_version

    async def _follow(self, version: str) -> str:
        stream = self._cluster.watch(self._kind, self._namespace, self._selector, resource_version=version)
        async with aclosing(stream) as events:
            async for event in events:
                version = str((event.obj.get("metadata") or {}).get("resourceVersion") or version)
                self._take(event)
        return version

    def _take(self, event: WatchEvent) -> None:
        if event.verb == "BOOKMARK":
            return
        name = key(event.obj)
        if event.verb == "DELETED":
            self.objects.pop(name, None)
        else:
            found = self._transform(event.obj)
            if self.objects.get(name) == found:
                return
            self.objects[name] = found
        self._on_change(name)
