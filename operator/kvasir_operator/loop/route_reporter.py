"""Writes the status of ModelRoutes: a loop of its own, since a route has no children and nothing waits for it.

Level-triggered: every few seconds each route's conditions are computed, and those written that are not there yet. The
gateway reads specs alone, so that requests depend on no status.
"""

import asyncio
import logging
from typing import Final

from kvasir_api import names, served_names
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError, NotFoundError
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import INFERENCE_SERVICE, MODEL_ROUTE, Json, key
from kvasir_operator.loop.clock import Clock, rfc3339
from kvasir_operator.loop.store import Store
from kvasir_operator.status.route_conditions import RouteFinding, oldest_routes, route_conditions

LOG: Final = logging.getLogger(__name__)
PERIOD_S: Final = 5.0


class RouteReporter:
    """namespace: that is watched, empty for all."""

    def __init__(
        self, cluster: Cluster, store: Store, *, namespace: str, clock: Clock, period_s: float = PERIOD_S
    ) -> None:
        self._cluster, self._store, self._clock = cluster, store, clock
        self._period_s = period_s
        self._routes = Informer(cluster, MODEL_ROUTE, namespace=namespace)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._routes.run())
            group.create_task(self._follow())

    async def _follow(self) -> None:
        await self._routes.synced.wait()
        while True:
            await self.report()
            await asyncio.sleep(self._period_s)

    async def report(self) -> None:
        """Write every status that is not as it should be; one that cannot be written now is tried again."""
        routes = list(self._routes.objects.values())
        if not routes:
            return
        services = list(self._store.all(INFERENCE_SERVICE))
        claims = (claim for service in services for claim in served_names.name_claims(service))
        owners = served_names.owners(claims, self._store.names.reserved)
        known, oldest = {key(service) for service in services}, oldest_routes(routes)
        for route in routes:
            found = route_conditions(route, oldest=oldest, services=known, owners=owners)
            if (status := self._status(route, found)) != (route.get("status") or {}):
                await self._write(route, status)

    def _status(self, route: Json, found: tuple[RouteFinding, ...]) -> Json:
        generation = int(route["metadata"].get("generation") or 0)
        before = {condition["type"]: condition for condition in (route.get("status") or {}).get("conditions") or ()}
        return {
            "observedGeneration": generation,
            "conditions": [
                {
                    "type": one.type,
                    "status": str(one.status),
                    "reason": one.reason,
                    "message": one.message,
                    "lastTransitionTime": self._since(before.get(one.type), str(one.status)),
                    "observedGeneration": generation,
                }
                for one in found
            ],
        }

    def _since(self, before: Json | None, status: str) -> str:
        if before is not None and before.get("status") == status:
            return str(before["lastTransitionTime"])
        return rfc3339(self._clock.wall())

    async def _write(self, route: Json, status: Json) -> None:
        namespace, name = key(route)
        patch = {"metadata": {"resourceVersion": route["metadata"]["resourceVersion"]}, "status": status}
        try:
            await self._cluster.merge(
                MODEL_ROUTE, namespace, name, patch, manager=names.STATUS_MANAGER, subresource="status"
            )
        except (NotFoundError, ConflictError):
            return  # gone, or another one than was read: the watch brings what is there
        except KubeError as error:
            LOG.warning("the status of ModelRoute %s/%s cannot be written yet: %s", namespace, name, error)
