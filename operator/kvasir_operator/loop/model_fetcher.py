"""Starts and deletes the pods that fetch models into the caches of nodes. What they are is decided in
`desired.model_fetch`, how far they are is read from the watch and from the replicas that wait.
"""

from dataclasses import dataclass
from typing import Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError
from kvasir_kube.kinds import POD
from kvasir_operator.loop.inspector import Inspector
from kvasir_operator.loop.store import Store
from kvasir_operator.loop.telemetry import Telemetry
from kvasir_operator.observed.service import Observed
from kvasir_operator.stages import FetchPlan

GRACE_S: Final = 0
"""What it has written so far stays and is gone on with, so that it may end at once."""


class ModelFetcher:
    """`apply` is called at each reconcile."""

    def __init__(self, cluster: Cluster, store: Store, telemetry: Telemetry) -> None:
        self._cluster, self._store, self._telemetry = cluster, store, telemetry

    async def apply(self, seen: Observed, plan: FetchPlan) -> KubeError | None:
        """Do what a plan says. Returns what the API server refused last; the rest of the plan is done all the same."""
        refused: KubeError | None = None
        for pod in plan.delete:
            try:
                await self._cluster.delete(POD, seen.namespace, pod.name, uid=pod.uid, grace_s=GRACE_S)
            except ConflictError:
                pass  # another one has its name by now, which the watch brings
            except KubeError as error:
                refused = error
                continue
            self._telemetry.wrote(POD.kind)
            self._store.drop(POD, (seen.namespace, pod.name), pod.uid)
        for wanted in plan.create:
            try:
                self._store.put(POD, await self._cluster.create(POD, wanted))
            except ConflictError:
                continue  # the one before has not gone yet, or the watch has not brought it
            except KubeError as error:
                refused = error
                continue
            self._telemetry.wrote(POD.kind)
        return refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPods:
    """What starts pods for a model before replicas serve it: one that looks at it, some that fetch it."""

    inspector: Inspector
    fetcher: ModelFetcher
