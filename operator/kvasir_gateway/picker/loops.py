"""The loops that keep the picker's knowledge true: objects into table and clusters file, readings, Envoy's status.

Shells: each reads, calls something pure or the picker, and writes. What the world does wrong is no reading or no
status; an error that is ours ends the process.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvasir_gateway import table as tables
from kvasir_gateway.envoy import clusters, files
from kvasir_gateway.envoy.admin import Admin, Status
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.sources import Objects, States
from kvasir_gateway.table import Read

LOG = logging.getLogger(__name__)
SETTLE_S = 0.02
"""Changes come in bursts; one table serves all of a burst."""
READ_DEADLINE_S = 1.0
"""A pod in a long step answers late; its reading is worth more than the cadence of the others."""
ASK_SOON_S = 0.01
ENVOY_PERIOD_S = 1.0


@dataclass(slots=True, kw_only=True)
class Health:
    """What readiness depends on."""

    synced: bool = False
    envoy_live: bool = False
    envoy_accepted: bool = False
    draining: bool = False

    def missing(self) -> str:
        """Why the gateway takes no requests; empty when it does."""
        if self.draining:
            return "draining"
        if not self.synced:
            return "services and pods are not listed yet"
        if not self.envoy_live:
            return "Envoy does not answer or is not live"
        return "" if self.envoy_accepted else "Envoy has not accepted the first configuration"


class Loops:
    """The three loops, over one picker."""

    def __init__(
        self,
        *,
        picker: Picker,
        objects: Objects,
        states: States,
        admin: Admin,
        directory: Path,
        clock: Callable[[], float],
        reading_period_s: float,
    ) -> None:
        self.health = Health()
        self._picker, self._objects, self._states = picker, objects, states
        self._admin, self._directory, self._clock = admin, directory, clock
        self._reading_period_s = reading_period_s
        self._written = clusters.document({})
        self._asked = asyncio.Event()
        self._envoy: tuple[int, int] | None = None
        self._rejected = 0

    async def run(self) -> None:
        """All loops, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._objects.run())
            group.create_task(self._follow_objects())
            group.create_task(self._follow_states())
            group.create_task(self._follow_envoy())

    async def _follow_objects(self) -> None:
        """Before the first complete lists nothing is written: an earlier picker's clusters go on to serve."""
        await self._objects.wait_synced()
        while True:
            self._objects.changed.clear()
            self._update()
            self.health.synced = True
            await self._objects.changed.wait()
            await asyncio.sleep(SETTLE_S)

    def _update(self) -> None:
        table = tables.table(self._objects.services(), self._objects.pods())
        document = clusters.document({s.key: [e.address for e in s.ready] for s in table.services})
        if told := tables.difference(self._picker.table, table):
            LOG.info("%s", told)
        self._picker.table = table
        self._picker.accepted &= document.clusters
        if document.version == self._written.version and self.health.synced:
            return
        files.write_clusters(self._directory, document)
        self._written = document
        self._asked.set()

    async def _follow_states(self) -> None:
        while True:
            started_s = self._clock()
            targets = {endpoint.address: endpoint.ops_url for endpoint in self._picker.table.endpoints()}
            found = await self._states.states(targets, deadline_s=max(self._reading_period_s, READ_DEADLINE_S))
            fresh = {address: Read(state=state, at_s=started_s) for address, state in found.items()}
            kept = {address: read for address, read in self._picker.reads.items() if address in targets}
            self._picker.reads = kept | fresh
            await asyncio.sleep(max(0.0, started_s + self._reading_period_s - self._clock()))

    async def _follow_envoy(self) -> None:
        """Once a second; after a write soon and then less and less soon, until it is accepted."""
        soon_s = ASK_SOON_S
        while True:
            self._asked.clear()
            status = await self._admin.status()
            current = self._notice(status)
            soon_s = ENVOY_PERIOD_S if current or not self.health.synced else min(soon_s * 1.5, ENVOY_PERIOD_S)
            try:
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with a write.
                async with asyncio.timeout(soon_s):
                    await self._asked.wait()
                soon_s = ASK_SOON_S
            except TimeoutError:
                continue

    def _notice(self, status: Status | None) -> bool:
        """Take in what Envoy says; whether it routes by what was written last."""
        self.health.envoy_live = bool(status and status.live)
        if status is None:
            return False
        if self._envoy not in {None, status.incarnation}:
            # A new Envoy knows nothing of what the old one forwarded; it may have forwarded some of its own by now.
            broken = self._picker.lost(before_s=self._clock() - status.age_s)
            LOG.warning("Envoy started anew; %d requests broke with the old one", broken)
        self._envoy = status.incarnation
        if status.rejected_updates > self._rejected:
            rejected = status.rejected_updates - self._rejected
            LOG.error("Envoy rejected %d updates of the clusters; its log says why", rejected)
        self._rejected = status.rejected_updates
        if not self.health.synced or status.clusters_version != self._written.version:
            return False
        self.health.envoy_accepted = True
        self._picker.accepted = self._written.clusters
        return True
