"""Asks every runtime pod and gateway for its state, all under one deadline, and remembers what each said last."""

import asyncio
import math
from dataclasses import dataclass
from typing import Final

from kvasir_api import names
from kvasir_api.state import RuntimeState, ServiceDemand
from kvasir_kube.kinds import POD, Json, Key, key, labels, uid
from kvasir_kube.state_reader import StateReader, url
from kvasir_operator.loop.clock import Clock
from kvasir_operator.loop.store import Store
from kvasir_operator.observed.replica import Replica, replica
from kvasir_operator.scaling.window import ScaledReplica

DEADLINE_S: Final = 1.0
STALE_S: Final = 6.0
"""A pod that was silent for so long gives no reading: three ticks, since one may be lost to a long step."""
GATEWAY_STATE_PORT: Final = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastReading:
    """What a pod said last, and when, on the steady clock."""

    state: RuntimeState
    at: float


class Scraper:
    """Readings of all pods that the store knows."""

    def __init__(self, store: Store, reader: StateReader, *, clock: Clock) -> None:
        self._store, self._reader, self._clock = store, reader, clock
        self._heard: dict[str, LastReading] = {}
        self._gateways: dict[str, tuple[float, tuple[ServiceDemand, ...]]] = {}
        self._began = math.inf
        self.missing_gateways: tuple[str, ...] = ()

    async def scrape(self) -> None:
        """One round. Whoever does not answer within the deadline keeps what it said before, growing stale."""
        pods = {uid(pod): pod for pod in self._store.all(POD)}
        runtimes = {id_: base for id_, pod in pods.items() if (base := _ops_url(pod))}
        gateways = {key(pod)[1]: base for pod in pods.values() if (base := _gateway_url(pod))}
        states, demands = await asyncio.gather(
            self._reader.states(runtimes, deadline_s=DEADLINE_S),
            self._reader.gateway_states(gateways, deadline_s=DEADLINE_S),
        )
        now = self._clock.steady()
        self._began = min(self._began, now)
        self._heard.update({id_: LastReading(state=state, at=now) for id_, state in states.items()})
        self._heard = {id_: heard for id_, heard in self._heard.items() if id_ in pods}
        # A gateway that has just become ready counts as heard, and says nothing yet.
        self._gateways = {name: self._gateways.get(name, (now, ())) for name in gateways}
        self._gateways.update({name: (now, state.services) for name, state in demands.items()})
        self.missing_gateways = tuple(sorted(name for name, (at, _) in self._gateways.items() if now - at > STALE_S))

    def replicas(self, service: Key) -> tuple[Replica, ...]:
        """The replicas of a service with their last readings, without inspection pods and quarantined pods."""
        return tuple(replica(pod, self.reading(uid(pod))) for pod in self._pods(service, quarantined=False))

    def quarantined(self, service: Key) -> tuple[Replica, ...]:
        """Pods that are quarantined because their device failed."""
        return tuple(replica(pod, None) for pod in self._pods(service, quarantined=True))

    def _pods(self, service: Key, *, quarantined: bool) -> list[Json]:
        pods = [pod for pod in self._store.of(POD, service) if names.LABEL_SERVICE in labels(pod)]
        return [pod for pod in pods if (labels(pod).get(names.LABEL_ROLE) == names.ROLE_QUARANTINE) is quarantined]

    def incomplete(self, service: Key) -> bool:
        """Whether a ready pod of the service has said nothing since this operator began, and is not silent for it yet.

        What it said to the operator before is not known, so nothing may be decided that depends on it.
        """
        if self._clock.steady() - self._began > STALE_S:
            return False
        return any(r.phase == "ready" and r.uid not in self._heard for r in self.replicas(service))

    def reading(self, uid_: str) -> RuntimeState | None:
        """What a pod said within STALE_S."""
        heard = self._heard.get(uid_)
        return heard.state if heard and self._clock.steady() - heard.at <= STALE_S else None

    def members(self, replicas: tuple[Replica, ...]) -> list[ScaledReplica]:
        """Replicas as the autoscaler counts them. One that has just become ready may not have been asked yet."""
        return [self._member(r) for r in replicas if r.phase in ("ready", "draining") and not self._new(r)]

    def demands(self, service: Key) -> list[ServiceDemand]:
        """What gateways hold for a service."""
        said = [demand for _, services in self._gateways.values() for demand in services]
        return [demand for demand in said if (demand.namespace, demand.name) == service]

    def _member(self, r: Replica) -> ScaledReplica:
        heard = self._heard.get(r.uid)
        return ScaledReplica(
            uid=r.uid,
            name=r.name,
            serving=r.phase == "ready",
            reading=heard.state if heard else None,
            fresh=r.reading is not None,
        )

    def _new(self, r: Replica) -> bool:
        return r.uid not in self._heard and r.ready_at is not None and self._clock.wall() - r.ready_at < STALE_S


def _ops_url(pod: Json) -> str:
    """Where a runtime pod is asked; empty for other pods, for those without an address and for those that leave."""
    if labels(pod).get(names.LABEL_COMPONENT) != names.COMPONENT_RUNTIME or pod["metadata"].get("deletionTimestamp"):
        return ""
    return replica(pod, None).ops_url


def _gateway_url(pod: Json) -> str:
    """Where a ready gateway pod is asked; empty for other pods."""
    if labels(pod).get(names.LABEL_NAME) != names.GATEWAY or pod["metadata"].get("deletionTimestamp"):
        return ""
    status = pod.get("status") or {}
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or ())
    if not ready or not status.get("podIP"):
        return ""
    ports = [p for c in pod["spec"].get("containers") or () for p in c.get("ports") or ()]
    port = next((p["containerPort"] for p in ports if p.get("name") == GATEWAY_STATE_PORT), names.PORT_GATEWAY_STATE)
    return url(status["podIP"], port, "")
