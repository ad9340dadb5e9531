"""Makes and drops directories for claims of class `standard`; the controller-manager binds. One loop, level-triggered.

Decisions are those of `rules/claims.py`. A second node finds the volume already there, so nodes do not disturb one
another.
"""

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError
from kvasir_local.node.apikinds import STORAGE_CLASS, VOLUME
from kvasir_local.node.recorder import Recorder
from kvasir_local.node.rules import claims
from kvasir_local.node.rules.kinds import Json
from kvasir_local.node.sources import Sources

LOG: Final = logging.getLogger(__name__)
RETRY_S: Final = 2.0
MANAGER: Final = "kvasir-node"


class Provisioner:
    """The loop and its wake-up bell."""

    def __init__(self, cluster: Cluster, sources: Sources, recorder: Recorder, root: Path) -> None:
        self._cluster, self._sources, self._recorder, self._root = cluster, sources, recorder, root
        self._bell = asyncio.Event()

    def wake(self) -> None:
        """Look again: a claim or a volume changed."""
        self._bell.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._until_done(self._make_class)
        await self._sources.synced()
        while True:
            self._bell.clear()
            await self._until_done(self._pass)
            await self._bell.wait()

    async def _until_done(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                return
            except KubeError as error:
                LOG.warning("storage: %s; again in %g s", error, RETRY_S)
                await asyncio.sleep(RETRY_S)

    async def _make_class(self) -> None:
        await self._cluster.apply(STORAGE_CLASS, claims.storage_class(), manager=MANAGER)

    async def _pass(self) -> None:
        known = {volume["metadata"]["name"] for volume in self._sources.volumes()}
        for claim in self._sources.claims():
            if claims.wants_volume(claim) and f"pvc-{claim['metadata']['uid']}" not in known:
                await self._make(claim)
        for volume in self._sources.volumes():
            directory = claims.droppable(volume, str(self._root))
            if directory:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                await self._cluster.delete(VOLUME, "", volume["metadata"]["name"], uid=volume["metadata"]["uid"])

    async def _make(self, claim: Json) -> None:
        metadata = claim["metadata"]
        directory = self._root / metadata["namespace"] / metadata["name"]
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o777)
        volume = claims.volume(claim, str(directory))
        try:
            await self._cluster.create(VOLUME, volume)
        except ConflictError:
            return
        name = volume["metadata"]["name"]
        self._recorder.object("PersistentVolumeClaim", claim, "ProvisioningSucceeded", f"provisioned volume {name}")
