"""Reads `/state` of every runtime pod and gateway under one deadline, and keeps the last reading of each.

A document is decoded once per tick, and a pod is parsed again only when it or its reading has changed.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kvasir_api import names
from kvasir_api.state import RuntimeState, ServiceDemand, unchanged
from kvasir_kube import gateway_pods
from kvasir_kube.kinds import POD, STATEFUL_SET, Json, Key, controller_uid, key, labels, uid
from kvasir_kube.state_reader import StateReader
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.store import Store
from kvasir_operator.observed.replica import Replica, replica, with_reading
from kvasir_operator.scaling.window import KEPT_S, LOST_S, ScaledReplica

DEADLINE_S: Final = 1.0
STALE_S: Final = 6.0
"""A pod that was silent for so long has no reading: three ticks, since one may be lost to a long step."""


class LastReading(Struct, frozen=True, kw_only=True):
    """The last document of a pod, and when it was read, on the steady clock."""

    state: RuntimeState
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDemand:
    """The last document of a gateway, and when it was read, on the steady clock."""

    services: tuple[ServiceDemand, ...] = ()
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """What of a pod is read. The store keeps an object until a newer one comes. ops_url: of a runtime's ops port, empty
    where none is read."""

    pod: Json
    ops_url: str
    is_gateway: bool


@dataclass(slots=True, kw_only=True)
class ParsedPod:
    """A replica and what it was parsed from. serves: whether it is one of its service's; node_of: uid of its
    StatefulSet where it is a node behind node 0 of a replica, else empty; quarantined: whether its device failed."""

    pod: Json
    serves: bool
    node_of: str
    quarantined: bool
    reading: RuntimeState | None
    replica: Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePods:
    """Pods of a service with their last readings, without those that inspect or fetch. replicas: without quarantined
    ones. quarantined: because their device failed. nodes: behind node 0 of a replica, each with the uid of its
    StatefulSet."""

    replicas: tuple[Replica, ...]
    quarantined: tuple[Replica, ...]
    nodes: tuple[tuple[str, Replica], ...]


class Scraper:
    """Readings of all pods that the store knows. system_namespace: where the gateways are that are believed. elsewhere:
    pods of that namespace, where the store has those of another one alone; it changes as they do."""

    def __init__(
        self,
        store: Store,
        reader: StateReader,
        *,
        clock: Clock,
        system_namespace: str = names.SYSTEM_NAMESPACE,
        elsewhere: Mapping[Key, Json] | None = None,
    ) -> None:
        self._store, self._reader, self._clock = store, reader, clock
        self._system_namespace = system_namespace
        self._elsewhere: Mapping[Key, Json] = {} if elsewhere is None else elsewhere
        self._readings: dict[str, LastReading] = {}
        self._targets: dict[str, ScrapeTarget] = {}
        self._parsed: dict[str, ParsedPod] = {}
        self._gateways: dict[str, LastDemand] = {}
        self._demands: dict[Key, list[ServiceDemand]] = {}
        self._began = math.inf

    async def scrape(self) -> None:
        """One round. What does not answer within the deadline keeps its last reading, which grows stale."""
        pods = {uid(pod): pod for pod in self._store.all(POD)}
        self._targets = {id_: self._target(id_, pod) for id_, pod in pods.items()}
        runtimes = {id_: target.ops_url for id_, target in self._targets.items() if target.ops_url}
        ours = [target.pod for target in self._targets.values() if target.is_gateway]
        ours += [pod for pod in self._elsewhere.values() if gateway_pods.is_gateway(pod, self._system_namespace)]
        gateways = {key(pod)[1]: base for pod in ours if (base := _gateway_url(pod, leaves=False))}
        leaving = {key(pod)[1]: base for pod in ours if (base := _gateway_url(pod, leaves=True))}
        states, demands = await asyncio.gather(
            self._reader.states(runtimes, deadline_s=DEADLINE_S),
            self._reader.gateway_states(gateways | leaving, deadline_s=DEADLINE_S),
        )
        now = self._clock.steady()
        self._began = min(self._began, now)
        self._readings.update({id_: self._taken(id_, state, now) for id_, state in states.items()})
        for known in (self._readings, self._parsed):
            for gone in known.keys() - pods.keys():
                del known[gone]
        # A gateway that has just become ready counts as read, without demand; one that leaves is not waited for.
        self._gateways = {name: self._gateways.get(name, LastDemand(at=now)) for name in gateways}
        for name, document in demands.items():
            named = tuple([replace(demand, gateway=name) for demand in document.services])
            self._gateways[name] = LastDemand(services=named, at=now)
        self._demands = {}
        for gateway in self._gateways.values():
            if now - gateway.at > LOST_S:
                continue  # what it held was answered or given up since
            for demand in gateway.services:
                self._demands.setdefault((demand.namespace, demand.name), []).append(demand)

    def _taken(self, id_: str, state: RuntimeState, now: float) -> LastReading:
        """A new reading. Of an idle pod the document is kept, so that nothing made of it is made again."""
        known = self._readings.get(id_)
        return LastReading(state=known.state if known and unchanged(known.state, state) else state, at=now)

    def pods(self, service: Key) -> ServicePods:
        """All of a service, as they are now."""
        parsed = [self._parse(pod) for pod in self._store.of(POD, service)]
        return ServicePods(
            replicas=tuple(pod.replica for pod in parsed if pod.serves and not pod.quarantined),
            quarantined=tuple(pod.replica for pod in parsed if pod.serves and pod.quarantined),
            nodes=tuple((pod.node_of, pod.replica) for pod in parsed if pod.node_of),
        )

    def replicas(self, service: Key) -> tuple[Replica, ...]:
        """Those of a service."""
        return self.pods(service).replicas

    def _parse(self, pod: Json) -> ParsedPod:
        id_ = uid(pod)
        known = self._parsed.get(id_)
        if known is None or known.pod is not pod:
            marks = labels(pod)
            role = marks.get(names.LABEL_ROLE)
            quarantined = role == names.ROLE_QUARANTINE
            reading = None if quarantined else self.reading(id_)
            known = self._parsed[id_] = ParsedPod(
                pod=pod,
                serves=names.LABEL_SERVICE in marks and role not in (names.ROLE_NODE, names.ROLE_LOST),
                node_of=controller_uid(pod, STATEFUL_SET) if role == names.ROLE_NODE else "",
                quarantined=quarantined,
                reading=reading,
                replica=replica(pod, reading),
            )
        elif not known.quarantined and known.reading is not (reading := self.reading(id_)):
            known.replica, known.reading = with_reading(known.replica, pod, reading), reading
        return known

    def incomplete(self, service: Key) -> bool:
        """Whether a ready pod of the service was not read since this operator started and is not yet counted as silent.

        What the operator before read of it is not known, so nothing may be decided that depends on it.
        """
        if self._clock.steady() - self._began > STALE_S:
            return False
        return any(r.phase == "ready" and r.uid not in self._readings for r in self.replicas(service))

    def reading(self, uid_: str) -> RuntimeState | None:
        """The last document of a pod that is not older than STALE_S."""
        last = self._readings.get(uid_)
        return last.state if last and self._clock.steady() - last.at <= STALE_S else None

    def members(self, replicas: tuple[Replica, ...], *, revision: str = "") -> list[ScaledReplica]:
        """Replicas as the autoscaler counts them. One that has just become ready may not have been read yet. revision:
        of the next replica, empty for any."""
        counted = [r for r in replicas if r.phase in ("ready", "draining") and not self._new(r)]
        return [self._member(r, current=revision in ("", r.revision)) for r in counted]

    def missing_gateways(self, service: Key) -> tuple[str, ...]:
        """Gateways that do not answer and may hold requests for a service: those that had some of it when they were
        read last. After LOST_S one is not waited for."""
        now = self._clock.steady()
        silent = [(name, g.services) for name, g in self._gateways.items() if STALE_S < now - g.at <= LOST_S]
        return tuple(sorted(name for name, had in silent if any(_has_traffic(d, service) for d in had)))

    def demands(self, service: Key) -> list[ServiceDemand]:
        """Requests that gateways hold for a service. One that is silent holds what it held last, until LOST_S."""
        return self._demands.get(service, [])

    def _member(self, r: Replica, *, current: bool) -> ScaledReplica:
        last = self._readings.get(r.uid)
        return ScaledReplica(
            uid=r.uid,
            name=r.name,
            serving=r.phase == "ready",
            reading=last.state if last else None,
            fresh=r.reading is not None,
            current=current,
            prefill=r.prefill,
        )

    def _target(self, id_: str, pod: Json) -> ScrapeTarget:
        known = self._targets.get(id_)
        if known is not None and known.pod is pod:
            return known
        is_gateway = gateway_pods.is_gateway(pod, self._system_namespace)
        return ScrapeTarget(pod=pod, ops_url=self._ops_url(pod), is_gateway=is_gateway)

    def _ops_url(self, pod: Json) -> str:
        """Base URL of a runtime pod's ops port; empty for other pods, those without an address and those that leave."""
        runtime = labels(pod).get(names.LABEL_COMPONENT) == names.COMPONENT_RUNTIME
        if not runtime or pod["metadata"].get("deletionTimestamp"):
            return ""
        return self._parse(pod).replica.ops_url

    def _new(self, r: Replica) -> bool:
        return r.uid not in self._readings and r.ready_at is not None and self._clock.wall() - r.ready_at < STALE_S


def _has_traffic(demand: ServiceDemand, service: Key) -> bool:
    if (demand.namespace, demand.name) != service:
        return False
    recent = 0 <= demand.last_request_age_s <= KEPT_S
    return bool(demand.held or demand.inflight) or recent


def _gateway_url(pod: Json, *, leaves: bool) -> str:
    """Base URL of the state port of a gateway's pod that is ready; or of one that leaves, which holds requests until
    its grace is over. Empty for others."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    if bool(pod["metadata"].get("deletionTimestamp")) is not leaves or not (ready or leaves):
        return ""
    return gateway_pods.state_url(pod)
