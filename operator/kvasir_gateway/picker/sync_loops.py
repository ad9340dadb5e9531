"""The loops that keep the picker current: objects into routing table and clusters file, readings, Envoy's status.

Shells: each reads, calls a pure function or the picker, and writes. A pod or an Envoy that fails gives no reading or no
status; an error of the gateway itself ends the process.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvasir_api import names
from kvasir_gateway import routing_table
from kvasir_gateway.envoy import clusters, files
from kvasir_gateway.envoy.admin import EnvoyAdmin, EnvoyStatus
from kvasir_gateway.envoy.upstream_tls import UpstreamTls
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.sources import ObjectSource, StateSource
from kvasir_gateway.routing_table import RoutingTable, StateReading

LOG = logging.getLogger(__name__)
SETTLE_S = 0.02
"""Changes come in bursts; one table is built for all of a burst."""
READ_DEADLINE_S = 1.0
"""A pod in a long step answers late; its reading matters more than the period of the others."""
FIRST_POLL_S = 0.01
ENVOY_PERIOD_S = 1.0
RECENT_DOCUMENTS = 16
"""So many changes may come while Envoy takes one in."""


@dataclass(slots=True, kw_only=True)
class GatewayHealth:
    """The conditions of readiness."""

    tenants_read: bool = False
    synced: bool = False
    envoy_live: bool = False
    envoy_accepted: bool = False
    draining: bool = False

    def missing(self) -> str:
        """Why the gateway takes no requests; empty when it does."""
        if self.draining:
            return "draining"
        if not self.tenants_read:
            return f"no tenants, nor that there are none, could be read from Secret {names.GATEWAY_KEYS_SECRET}"
        if not self.synced:
            return "services and pods are not listed yet"
        if not self.envoy_live:
            return "Envoy does not answer or is not live"
        return "" if self.envoy_accepted else "Envoy has not accepted the first configuration"


class SyncLoops:
    """The three loops, over one picker."""

    def __init__(
        self,
        *,
        picker: Picker,
        objects: ObjectSource,
        states: StateSource,
        admin: EnvoyAdmin,
        directory: Path,
        clock: Callable[[], float],
        reading_period_s: float,
    ) -> None:
        self.health = GatewayHealth()
        self._picker, self._objects, self._states = picker, objects, states
        self._admin, self._directory, self._clock = admin, directory, clock
        self._reading_period_s = reading_period_s
        self._written = clusters.clusters_file({})
        self._recent: dict[str, frozenset[str]] = {}
        self._poll_now = asyncio.Event()
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
        """Before the first complete lists nothing is written: the clusters of an earlier picker stay in use."""
        await self._objects.wait_synced()
        while True:
            self._objects.changed.clear()
            self._update()
            self.health.synced = True
            await self._objects.changed.wait()
            await asyncio.sleep(SETTLE_S)

    def _update(self) -> None:
        objects, authority = self._objects, self._states.tls.authority
        table = routing_table.build(
            objects.services(), objects.pods(), objects.workloads(), objects.routes(), verifies=bool(authority)
        )
        document = clusters.clusters_file(
            {s.key: [e.address for e in s.reachable] for s in table.services},
            last_resort={e.address for e in table.endpoints() if e.last_resort},
            tls=self._upstream_tls(table, authority),
        )
        if changes := routing_table.changes(self._picker.table, table):
            LOG.info("%s", changes)
        self._picker.table = table
        self._picker.accepted_clusters &= document.clusters
        if document.version == self._written.version and self.health.synced:
            return
        files.write_clusters(self._directory, document)
        files.write_model_routes(self._directory, {model: service.key for model, service in table.models().items()})
        self._written = document
        self._recent = dict([*self._recent.items(), (document.version, document.clusters)][-RECENT_DOCUMENTS:])
        self._poll_now.set()

    def _upstream_tls(self, table: RoutingTable, authority: str) -> UpstreamTls | None:
        hosts = tuple((e.address, e.server_name) for e in table.endpoints() if e.server_name)
        return UpstreamTls(files.write_authority(self._directory, authority), hosts) if hosts and authority else None

    def verify(self, authority: str) -> None:
        """Verify pods by these certificates from now on. Raises ValueError where they are none."""
        if self._states.tls.trust(authority):
            self._objects.changed.set()

    async def _follow_states(self) -> None:
        while True:
            started_s = self._clock()
            targets = {endpoint.address: endpoint.ops_url for endpoint in self._picker.table.endpoints()}
            found = await self._states.states(
                targets,
                deadline_s=max(self._reading_period_s, READ_DEADLINE_S),
                prefixes=self._picker.router.followed(targets),
            )
            self._picker.router.take_readings(found, began_s=started_s)
            fresh = {address: StateReading(state=state, at_s=started_s) for address, state in found.items()}
            kept = {address: reading for address, reading in self._picker.readings.items() if address in targets}
            self._picker.readings = kept | fresh
            await asyncio.sleep(max(0.0, started_s + self._reading_period_s - self._clock()))

    async def _follow_envoy(self) -> None:
        """Polls once a second; after a write at once and then less often, until Envoy has accepted it."""
        period_s = FIRST_POLL_S
        while True:
            self._poll_now.clear()
            status = await self._admin.status()
            current = self._observe_envoy(status)
            if status is not None and status.draining is not self.health.draining:
                await self._admin.set_draining(self.health.draining)  # one of the two processes is new
            period_s = ENVOY_PERIOD_S if current or not self.health.synced else min(period_s * 1.5, ENVOY_PERIOD_S)
            try:
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with a write.
                async with asyncio.timeout(period_s):
                    await self._poll_now.wait()
                period_s = FIRST_POLL_S
            except TimeoutError:
                continue

    def _observe_envoy(self, status: EnvoyStatus | None) -> bool:
        """Take in Envoy's status. Returns whether Envoy routes by the clusters that were written last."""
        self.health.envoy_live = bool(status and status.live)
        if status is None:
            return False
        if self._envoy not in {None, status.incarnation}:
            # A new Envoy logs no end of what the old one forwarded, and may have forwarded requests of its own already.
            broken = self._picker.ends.envoy_restarted(before_s=self._clock() - status.age_s)
            LOG.warning("Envoy restarted; %d requests in flight broke", broken)
        self._envoy = status.incarnation
        if status.rejected_updates > self._rejected:
            rejected = status.rejected_updates - self._rejected
            LOG.error("Envoy rejected %d updates of the clusters; its log has the reason", rejected)
        self._rejected = status.rejected_updates
        if self.health.synced and (lost := self._picker.ends.observe_active(status.active, self._picker.table)):
            LOG.warning("the ends of %d requests were lost", lost)
        if not self.health.synced or status.clusters_version not in self._recent:
            return False
        self.health.envoy_accepted = True
        self._picker.accepted_clusters = self._recent[status.clusters_version] & self._written.clusters
        return status.clusters_version == self._written.version
