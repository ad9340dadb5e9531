"""Gathers everything that is known about one service; the only reader of the cluster besides the watches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvasir_api import names
from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.state import ServedTotals
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import NotFoundError
from kvasir_kube.kinds import (
    ACCELERATOR_CLASS,
    CLAIM,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD,
    SERVICE,
    STATEFUL_SET,
    Json,
    Key,
    controller_uid,
    key,
    labels,
)
from kvasir_operator.desired.source import CLAIM_SCHEME, model_source
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.nodes import NodeReader
from kvasir_operator.loop.scraper import Scraper
from kvasir_operator.loop.store import Store
from kvasir_operator.observed import drain_times, served_baseline
from kvasir_operator.observed.drain_times import DrainStart
from kvasir_operator.observed.model_claim import ModelClaim, model_claim
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.served_baseline import ServedBaseline
from kvasir_operator.observed.service import Observed, observed, parsed_class

CLAIM_KNOWN_S: Final = 60.0
"""A claim that has its volume is not read again for so long; a missing one is read each time."""


class Observer:
    """Reads the store, and live what is not watched: the model's claim."""

    def __init__(self, cluster: Cluster, store: Store, scraper: Scraper, *, clock: Clock) -> None:
        self._cluster, self._store, self._scraper, self._clock = cluster, store, scraper, clock
        self._nodes = NodeReader(cluster, clock=clock)
        self._claims: dict[Key, tuple[float, ModelClaim]] = {}
        self._baselines: dict[Key, ServedBaseline] = {}
        self._drains: dict[Key, dict[str, DrainStart]] = {}
        self._classes: dict[str, tuple[Json, AcceleratorClassSpec]] = {}

    def service(self, name: Key) -> Json | None:
        """The service as the watch brought it last; None when it is gone or about to go."""
        service = self._store.get(INFERENCE_SERVICE, name)
        return None if service is None or service["metadata"].get("deletionTimestamp") else service

    def services(self) -> frozenset[Key]:
        """All that `service` finds."""
        return frozenset(
            name for name in map(key, self._store.all(INFERENCE_SERVICE)) if self.service(name) is not None
        )

    async def observe(self, service: Json) -> Observed:
        """The service with its children, pods, readings and obstacles."""
        name = key(service)
        claim = await self._claim(service)
        pods = self._scraper.pods(name)
        replicas = self._replicas(name, pods.replicas)
        return observed(
            service,
            # A StatefulSet keeps revisions of its own, with the labels of its pods.
            revisions=[r for r in self._store.of(CONTROLLER_REVISION, name) if not controller_uid(r, STATEFUL_SET)],
            deployments=self._store.of(DEPLOYMENT, name),
            replicas=replicas,
            node_sets=self._store.of(STATEFUL_SET, name),
            nodes=pods.nodes,
            quarantined=pods.quarantined,
            svc=self._store.get(SERVICE, name),
            guards=[*self._store.of(DISRUPTION_BUDGET, name), *self._store.of(NETWORK_POLICY, name)],
            claim_found=claim.found,
            claim_bound=claim.bound,
            claim_of_one_node=claim.of_one_node,
            name_conflicts=self._store.names.conflicts(service),
            inspections=[pod for pod in self._store.of(POD, name) if names.LABEL_INSPECTS in labels(pod)],
            fetches=[pod for pod in self._store.of(POD, name) if names.LABEL_FETCHES in labels(pod)],
            classes=self._accelerators(),
            served_before=self._served_before(name, service, replicas),
        )

    def forget(self, name: Key) -> None:
        """The service is gone."""
        self._baselines.pop(name, None)
        self._drains.pop(name, None)

    def _replicas(self, name: Key, found: tuple[Replica, ...]) -> tuple[Replica, ...]:
        """Of a service, with how long they have drained."""
        steady = self._clock.steady()
        self._drains[name] = drain_times.followed(
            self._drains.get(name, {}), found, wall=self._clock.wall(), steady=steady
        )
        return drain_times.measured(self._drains[name], found, steady=steady)

    def _served_before(self, name: Key, service: Json, replicas: tuple[Replica, ...]) -> Mapping[str, ServedTotals]:
        rollout = (service.get("status") or {}).get("rollout") or {}
        step = (str(rollout.get("currentRevision") or ""), int(rollout.get("step") or 0))
        self._baselines[name] = found = served_baseline.followed(self._baselines.get(name), step, replicas)
        return found.totals

    async def with_nodes(self, seen: Observed, *, wanted: int) -> Observed:
        """The same with the state of its nodes, where one of its replicas must leave."""
        return await self._nodes.marked(seen, wanted=wanted)

    async def with_domains(self, seen: Observed) -> Observed:
        """The same with what replicas are near to whose other pods are to be made."""
        return await self._nodes.placed(seen)

    async def with_candidates(self, seen: Observed) -> Observed:
        """The same with the nodes where a replica may come, for those that are to have its model before."""
        return replace(seen, candidates=await self._nodes.candidates())

    def _accelerators(self) -> dict[str, AcceleratorClassSpec]:
        """All classes; only one that has changed is parsed again: the store keeps an object until a newer one comes."""
        found = {}
        for obj in self._store.all(ACCELERATOR_CLASS):
            known = self._classes.get(key(obj)[1])
            found[key(obj)[1]] = known if known is not None and known[0] is obj else (obj, parsed_class(obj)[1])
        self._classes = found
        return {name: spec for name, (_, spec) in found.items()}

    async def _claim(self, service: Json) -> ModelClaim:
        """The claim of the model, or of the cache of one on a hub; the default where none is needed."""
        model = (service.get("spec") or {}).get("model") or {}
        uri, cache = str(model.get("uri", "")), str(model.get("cacheClaim", ""))
        if not uri.startswith(CLAIM_SCHEME) and not cache:
            return ModelClaim()
        claim = (key(service)[0], cache or model_source(uri).volume)
        now = self._clock.steady()
        at, known = self._claims.get(claim, (-CLAIM_KNOWN_S, ModelClaim()))
        if now - at < CLAIM_KNOWN_S:
            return known
        try:
            found = model_claim(await self._cluster.get(CLAIM, *claim))
        except NotFoundError:
            self._claims.pop(claim, None)
            return ModelClaim(found=False, bound=False)
        if found.bound:
            self._claims[claim] = (now, found)
        return found
