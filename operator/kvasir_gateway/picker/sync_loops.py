"""The loops that keep the picker current: objects into routing table and clusters, readings, Envoy's status.

Shells: each reads, calls a pure function or the picker, and writes. A pod or an Envoy that fails gives no reading or no
status; an error of the gateway itself ends the process.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvasir_api import names
from kvasir_gateway import routing_table
from kvasir_gateway.envoy import files
from kvasir_gateway.envoy.admin import EnvoyAdmin, EnvoyStatus
from kvasir_gateway.picker.cluster_discovery import ClusterDiscovery
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.service_clusters import ServiceClusters
from kvasir_gateway.picker.sources import ObjectSource, StateSource
from kvasir_gateway.routing_table import RoutingTable, StateReading

LOG = logging.getLogger(__name__)
SETTLE_S = 0.02
"""Changes come in bursts; one table is built for all of a burst."""
READ_DEADLINE_S = 1.0
"""A pod in a long step answers late; its reading matters more than the period of the others."""
FIRST_POLL_S = 0.01
ENVOY_PERIOD_S = 1.0


@dataclass(slots=True, kw_only=True)
class GatewayHealth:
    """The conditions of readiness. synced: a table of all services is there."""

    tenants_read: bool = False
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    envoy_live: bool = False
    envoy_accepted: bool = False
    draining: bool = False

    def missing(self) -> str:
        """Why the gateway takes no requests; empty when it does."""
        if self.draining:
            return "draining"
        if not self.tenants_read:
            return f"no tenants, nor that there are none, could be read from Secret {names.GATEWAY_KEYS_SECRET}"
        if not self.synced.is_set():
            return "services and pods are not listed yet"
        if not self.envoy_live:
            return "Envoy does not answer or is not live"
        return "" if self.envoy_accepted else "Envoy has not accepted the first configuration"


class SyncLoops:
    """The three loops, over one picker. clusters: what Envoy gets."""

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
        reserved_names: Mapping[str, str],
    ) -> None:
        self.health = GatewayHealth()
        self._picker, self._objects, self._states = picker, objects, states
        self._admin, self._directory, self._clock = admin, directory, clock
        self._reading_period_s, self._reserved_names = reading_period_s, reserved_names
        self._known = routing_table.KnownObjects()
        self.clusters, self._service_clusters = ClusterDiscovery(self._take_accepted), ServiceClusters()
        self._models: Mapping[str, str] | None = None
        self._poll_now = asyncio.Event()
        self._envoy: tuple[int, int] | None = None

    async def run(self) -> None:
        """All loops, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._objects.run())
            group.create_task(self._follow_objects())
            group.create_task(self._follow_states())
            group.create_task(self._follow_envoy())

    async def _follow_objects(self) -> None:
        """Before the first complete lists nothing is published: the clusters of an earlier picker stay in use."""
        await self._objects.wait_synced()
        while True:
            self._objects.changed.clear()
            self._update()
            self.health.synced.set()
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the event.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._service_clusters.settled_in_s(self._clock())):
                    await self._objects.changed.wait()
            await asyncio.sleep(SETTLE_S)

    def _update(self) -> None:
        objects, authority = self._objects, self._states.tls.authority
        table = routing_table.build(
            objects.services(),
            objects.pods(),
            objects.workloads(),
            objects.routes(),
            verifies=bool(authority),
            reserved_names=self._reserved_names,
            known=self._known,
        )
        clusters = self._service_clusters.of(
            table.services, self._authority_file(table, authority), now_s=self._clock()
        )
        if changes := routing_table.changes(self._picker.table, table):
            LOG.info("%s", changes)
        self._picker.table = table
        self._picker.accepted_clusters &= {name for name, one in clusters.items() if one.reachable}
        self.clusters.publish(clusters)
        models = {model: service.key for model, service in table.models().items()}
        if models != self._models:
            files.write_model_routes(self._directory, models)
            self._models = models

    def _authority_file(self, table: RoutingTable, authority: str) -> str:
        if not authority or not any(endpoint.server_name for endpoint in table.endpoints()):
            return ""
        return files.write_authority(self._directory, authority)

    def _take_accepted(self, clusters: frozenset[str]) -> None:
        self._picker.accepted_clusters = clusters
        self.health.envoy_accepted = self.clusters.confirmed
        if not self.health.envoy_live:
            self._poll_now.set()

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
        """Polls once a second; at once and then less often until Envoy is live, which it is with its first clusters."""
        period_s = FIRST_POLL_S
        while True:
            self._poll_now.clear()
            status = await self._admin.status()
            self._observe_envoy(status)
            if status is not None and status.draining is not self.health.draining:
                await self._admin.set_draining(self.health.draining)  # one of the two processes is new
            period_s = ENVOY_PERIOD_S if self.health.envoy_live else min(period_s * 1.5, ENVOY_PERIOD_S)
            try:
                async with asyncio.timeout(period_s):
                    await self._poll_now.wait()
                period_s = FIRST_POLL_S
            except TimeoutError:
                continue

    def _observe_envoy(self, status: EnvoyStatus | None) -> None:
        self.health.envoy_live = bool(status and status.live)
        if status is None:
            return
        if self._envoy not in {None, status.incarnation}:
            # A new Envoy logs no end of what the old one forwarded, and may have forwarded requests of its own already.
            broken = self._picker.ends.envoy_restarted(before_s=self._clock() - status.age_s)
            LOG.warning("Envoy restarted; %d requests in flight broke", broken)
        self._envoy = status.incarnation
        if not self.health.synced.is_set():
            return
        if lost := self._picker.ends.observe_active(status.active, self._picker.table):
            LOG.warning("the ends of %d requests were lost", lost)
