"""A mirror of one kind of object: list, then watch, for ever. The gateway keeps its table from mirrors.

Level-triggered: a reader looks at `objects` and is told by `on_change` that a key may differ; a missed or doubled call
changes nothing, and what the projection leaves out wakes nobody. Decides nothing about the objects.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from kvasir_kube.cluster import Cluster, WatchEvent
from kvasir_kube.errors import ExpiredError, KubeError
from kvasir_kube.kinds import Json, Key, Kind, key, slim

LOG: Final = logging.getLogger(__name__)
FIRST_BACKOFF_S: Final = 0.2
LAST_BACKOFF_S: Final = 20.0


def _ignore(_: Key) -> None:
    """What a mirror without a listener calls."""


class Mirror:
    """Objects of one kind by key. `run()` never returns; `synced` is set once the first list is complete."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        *,
        namespace: str = "",
        selector: str = "",
        project: Callable[[Json], Json] = slim,
        on_change: Callable[[Key], None] = _ignore,
    ) -> None:
        self.objects: dict[Key, Json] = {}
        self.synced = asyncio.Event()
        self.heard_at = time.monotonic()
        self._cluster, self._kind, self._namespace, self._selector = cluster, kind, namespace, selector
        self._project, self._on_change = project, on_change

    def silence_s(self) -> float:
        """Seconds since the API server was heard on this watch, bookmarks included."""
        return time.monotonic() - self.heard_at

    async def run(self) -> None:
        """Follow the API server until cancelled; after an error again from a list, with growing and jittered pauses."""
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
        self.heard_at = time.monotonic()
        found = {key(item): self._project(item) for item in listing.items}
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
                self.heard_at = time.monotonic()
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
            found = self._project(event.obj)
            if self.objects.get(name) == found:
                return
            self.objects[name] = found
        self._on_change(name)
