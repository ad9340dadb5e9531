"""Creates and deletes directories for claims of class `standard`; the controller-manager binds. Level-triggered.

`rules/local_volumes.py` decides. A second node finds that the volume exists and does nothing.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError
from kvasir_kube.kinds import Json
from kvasir_local.node.api_kinds import STORAGE_CLASS, VOLUME
from kvasir_local.node.event_recorder import EventRecorder
from kvasir_local.node.object_cache import ObjectCache
from kvasir_local.node.rules import local_volumes

LOG: Final = logging.getLogger(__name__)
RETRY_S: Final = 2.0
MANAGER: Final = "kvasir-node"


class Provisioner:
    """The provisioner's loop."""

    def __init__(self, cluster: Cluster, cache: ObjectCache, recorder: EventRecorder, root: Path) -> None:
        self._cluster, self._cache, self._recorder, self._root = cluster, cache, recorder, root
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """A claim or a volume may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled."""
        await self._until_done(self._make_class)
        await self._cache.synced()
        while True:
            self._wake.clear()
            await self._until_done(self._pass)
            await self._wake.wait()

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                return
            except KubeError as error:
                LOG.warning("storage: %s; again in %g s", error, RETRY_S)
                await asyncio.sleep(RETRY_S)

    async def _make_class(self) -> None:
        await self._cluster.apply(STORAGE_CLASS, local_volumes.storage_class(), manager=MANAGER)

    async def _pass(self) -> None:
        known = {volume["metadata"]["name"] for volume in self._cache.volumes()}
        for claim in self._cache.claims():
            if local_volumes.wants_volume(claim) and f"pvc-{claim['metadata']['uid']}" not in known:
                await self._make(claim)
        for volume in self._cache.volumes():
            directory = local_volumes.droppable(volume, str(self._root))
            if directory:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                await self._cluster.delete(VOLUME, "", volume["metadata"]["name"], uid=volume["metadata"]["uid"])

    async def _make(self, claim: Json) -> None:
        metadata = claim["metadata"]
        directory = self._root / metadata["namespace"] / metadata["name"]
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o777)
        volume = local_volumes.volume(claim, str(directory))
        try:
            await self._cluster.create(VOLUME, volume)
        except ConflictError:
            return
        name = volume["metadata"]["name"]
        self._recorder.object("PersistentVolumeClaim", claim, "ProvisioningSucceeded", f"provisioned volume {name}")
