"""Renews the Lease of the node, and posts the node itself from time to time and whenever the API server has it as not
ready: after an outage a controller has marked it so, and only its own word makes it ready again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_local.node.api_kinds import LEASE, NODE
from kvasir_local.node.rules import node_object

LOG: Final = logging.getLogger(__name__)
HEARTBEAT_S: Final = 10.0
REPORT_S: Final = 300.0
RETRY_S: Final = 1.0


class Heartbeat:
    """Of one node. manager: field manager of what is applied. report: posts the node. sleep: pauses."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        *,
        manager: str,
        report: Callable[[], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster, self._node, self._manager = cluster, node, manager
        self._report, self._sleep = report, sleep

    async def run(self) -> None:
        """Until cancelled, beginning with a pause: the node has just been posted."""
        reported, pause_s = time.monotonic(), HEARTBEAT_S
        while True:
            await self._sleep(pause_s)
            try:
                await self._renew()
                if time.monotonic() - reported >= REPORT_S or not await self._known_ready():
                    await self._report()
                    reported = time.monotonic()
                pause_s = HEARTBEAT_S
            except KubeError as error:
                LOG.warning("heartbeat: %s; again in %g s", error, RETRY_S)
                pause_s = RETRY_S

    async def _renew(self) -> None:
        lease = node_object.lease(self._node, now=time.time())
        await self._cluster.apply(LEASE, lease, manager=self._manager)

    async def _known_ready(self) -> bool:
        return node_object.is_ready(await self._cluster.get(NODE, "", self._node))
