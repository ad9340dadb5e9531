"""What the gateway may route to: services by model name and their endpoints, rebuilt from the watched objects.

Pure: the picker's loops pass lists from the API server and readings from the pods. Readiness is read from pods, never
from EndpointSlices, which drop a pod late. Knows no Envoy and no clock.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvasir_api import http_apis, names, served_names
from kvasir_api.served_names import NameClaim
from kvasir_api.state import RuntimeState
from kvasir_gateway import model_routes
from kvasir_gateway.choose import Candidate, EndpointLoad
from kvasir_gateway.held_places import WaitPhase
from kvasir_gateway.model_routes import ModelRoute
from kvasir_gateway.parsed_objects import (
    Endpoint,
    ParsedPod,
    ParsedWorkload,
    PerObject,
    parsed_pod,
    parsed_workload,
)
from kvasir_gateway.queue_room import queue_room
from kvasir_kube.kinds import DEPLOYMENT, REPLICA_SET, Json, Key, key, uid

READING_MAX_AGE_S = 10.0
"""An older reading does not count: a pod that did not answer for so long is the last choice."""
FRESH_READING_S = 2.0
"""A reading of this age outranks the condition Ready, which is False where no kubelet could refresh it: of all pods of
a node that the API server has not heard from."""
PLAUSIBLE_PREFILL = 0.01, 1e7
PLAUSIBLE_SLOPE_S = 0.0, 60.0
PLAUSIBLE_QUEUE_S = 0.0, 86_400.0
"""What is outside of these was not measured: numbers of one pod must not spoil the choice for its whole service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedService:
    """One InferenceService that clients can name. key: namespace.name, unambiguous since namespaces hold no dots.

    may_start: replicas are wanted, or a request makes some wanted, and the operator has not given up on them.
    tenant_header: of its clients' requests, that names the tenant; "" for none. cold_start_s: of its last replica, 0
    where none has started. unaddressed: pods without an address yet, as the phase that they are in. backend: name of
    the external one that answers in place of pods, "" for none; name is ROUTE/BACKEND then, and model its own there.
    """

    namespace: str
    name: str
    model: str
    created: str
    may_start: bool = True
    tenant_header: str = ""
    cold_start_s: float = 0.0
    unaddressed: tuple[WaitPhase, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    backend: str = ""

    @property
    def key(self) -> str:
        """Name of the service, unique over all namespaces, and of its cluster in Envoy."""
        return f"{self.namespace}.{self.name}"

    @property
    def ready(self) -> tuple[Endpoint, ...]:
        """Endpoints that take requests."""
        return tuple(e for e in self.endpoints if e.takes_requests)

    @property
    def reachable(self) -> tuple[Endpoint, ...]:
        """Endpoints that take requests, and those of last resort."""
        return tuple(e for e in self.endpoints if e.takes_requests or e.last_resort)

    def within(self, addresses: Container[str]) -> "RoutedService":
        """With these endpoints alone."""
        return replace(self, endpoints=tuple(e for e in self.endpoints if e.address in addresses))


Holder = tuple[RoutedService, str]
"""A service, and the address of one of its replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingTable:
    """All services; by_model holds the one of each name that is listed: the names that services own, and NAMESPACE/NAME
    of those that own none. by_qualified: all of them by NAMESPACE/NAME. routes: by the names whose requests they route.
    backends: external ones of routes, by their keys.
    """

    services: tuple[RoutedService, ...] = ()
    by_model: Mapping[str, RoutedService]
    by_qualified: Mapping[str, RoutedService] = field(default_factory=dict)
    routes: Mapping[str, ModelRoute] = field(default_factory=dict)
    backends: Mapping[str, RoutedService] = field(default_factory=dict)

    def service(self, model: str) -> RoutedService | None:
        """The service that a request for this model goes to."""
        return self.by_qualified.get(model) or self.by_model.get(model)

    def by_key(self, key: str) -> RoutedService | None:
        """The service, or the backend, with this key."""
        namespace, _, name = key.partition(".")
        return self.backends.get(key) or self.by_qualified.get(served_names.qualified_name(namespace, name))

    def listed(self) -> Mapping[str, str]:
        """When the model of each name that is listed was created: those of services, and of routes to some of them that
        have a name of their own."""
        shown = {service.key for service in self.services} | self.backends.keys()
        return {
            **{name: service.created for name, service in self.by_model.items()},
            **{
                name: route.created
                for name, route in self.routes.items()
                if self.service(name) is None and route.model not in self.routes and shown.intersection(route.services)
            },
        }

    def models(self) -> Mapping[str, RoutedService]:
        """The service of every name that a request may have."""
        return {**self.by_model, **self.by_qualified}

    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints of all services, ready or not."""
        return tuple(endpoint for service in self.services for endpoint in service.endpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReading:
    """A state document and when it was read, on the caller's clock."""

    state: RuntimeState
    at_s: float


EMPTY = RoutingTable(by_model={})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedService:
    """claims: all its names. service: without pods."""

    key: Key
    uid: str
    claims: tuple[NameClaim, ...]
    service: RoutedService


class KnownObjects:
    """Parsed objects, and the services that were made of them."""

    def __init__(self) -> None:
        self.services = PerObject(_parsed_service)
        self.pods, self.workloads = PerObject(parsed_pod), PerObject(parsed_workload)
        self._routed: dict[Key, tuple[tuple[object, ...], RoutedService]] = {}

    def routed(
        self, services: Iterable[ParsedService], pods: Mapping[Key, Sequence[ParsedPod]], *, verifies: bool
    ) -> list[RoutedService]:
        """Services with their pods, the same objects as in the call before where both are. pods: by service."""
        before, self._routed = self._routed, {}
        for one in services:
            made_of, kept = (verifies, one, *pods[one.key]), before.get(one.key)
            if kept is None or kept[0] != made_of:
                kept = made_of, _with_pods(one.service, pods[one.key], verifies=verifies)
            self._routed[one.key] = kept
        return [service for _, service in self._routed.values()]


def build(
    services: Iterable[Json],
    pods: Iterable[Json],
    workloads: Iterable[Json] = (),
    routes: Iterable[Json] = (),
    *,
    verifies: bool = True,
    reserved_names: Mapping[str, str] = served_names.NONE_RESERVED,
    known: KnownObjects | None = None,
) -> RoutingTable:
    """Join services and pods. A name that several services claim belongs to one of them, by the operator's rule.

    verifies: whether pods that speak TLS can be verified; else they get no request. reserved_names: namespaces by the
    names that are theirs alone, whatever the operator has yet written about other claims. known: of the table before; a
    service that did not change is the same object in both.

    A pod is a service's when it carries its label in its namespace, and when workloads has its ReplicaSet and the
    Deployment of that, both of its namespace, and that very service, by uid, controls the Deployment: labels, and
    references to the service itself, can be written by all who may create a pod.
    """
    known = known or KnownObjects()
    parsed = known.services.of(services)
    owned = _owned(parsed, known.pods.of(pods), known.workloads.of(workloads))
    routed_services = known.routed(parsed, owned, verifies=verifies)
    found = {(service.namespace, service.name): service for service in sorted(routed_services, key=lambda s: s.key)}
    held = served_names.owners((claim for one in parsed for claim in one.claims), reserved_names)
    by_qualified = {served_names.qualified_name(*name): service for name, service in found.items()}
    by_model = {model: by_qualified.get(model) or found[claim.namespace, claim.name] for model, claim in held.items()}
    named = {service.key for service in by_model.values()}
    by_model |= {name: service for name, service in by_qualified.items() if service.key not in named}
    routed = model_routes.by_name(model_routes.parsed(routes), by_model)
    return RoutingTable(
        services=tuple(found.values()),
        by_model=by_model,
        by_qualified=by_qualified,
        routes=routed,
        backends=_backends(routed.values()),
    )


def _owned(
    services: Iterable[ParsedService], pods: Iterable[ParsedPod], workloads: Iterable[ParsedWorkload]
) -> Mapping[Key, list[ParsedPod]]:
    """The pods that each service controls through a Deployment and a ReplicaSet, without those in quarantine."""
    found: dict[Key, list[ParsedPod]] = {one.key: [] for one in services}
    uids = {one.key: one.uid for one in services}
    above: dict[str, dict[Key, str]] = {REPLICA_SET.kind: {}, DEPLOYMENT.kind: {}}
    for workload in workloads:
        above[workload.kind][workload.key] = workload.above
    sets, deployments = above[REPLICA_SET.kind], above[DEPLOYMENT.kind]
    for pod in pods:
        owner = deployments.get((pod.service[0], sets.get(pod.replica_set, "")), "")
        if owner and not pod.quarantined and uids.get(pod.service) == owner:
            found[pod.service].append(pod)
    return found


def _with_pods(service: RoutedService, pods: Iterable[ParsedPod], *, verifies: bool) -> RoutedService:
    endpoints = sorted((pod.endpoint for pod in pods if pod.endpoint is not None), key=lambda e: e.pod)
    if not verifies:
        endpoints = [replace(e, takes_requests=False, last_resort=False) if e.server_name else e for e in endpoints]
    waits = tuple(pod.waits for pod in pods if pod.waits is not None)
    return replace(service, endpoints=tuple(endpoints), unaddressed=waits)


def _backends(routes: Iterable[ModelRoute]) -> dict[str, RoutedService]:
    """External backends of routes by their keys."""
    return {
        route.key_of(backend.name): RoutedService(
            namespace=route.namespace,
            name=f"{route.name}/{backend.name}",
            model=backend.model,
            created=route.created,
            may_start=False,
            backend=backend.name,
        )
        for route in routes
        for backend in route.spec.backends
    }


def changes(before: RoutingTable, after: RoutingTable) -> str:
    """The changes for clients, as one sentence; empty when there are none."""
    same = {id(service) for service in before.services} & {id(service) for service in after.services}
    old, new = (
        {(s.key, s.model): len(s.ready) for s in table.services if id(s) not in same} for table in (before, after)
    )
    parts = [
        f"{key} serves {model!r} with {new[key, model]} ready replicas"
        for key, model in sorted(new)
        if old.get((key, model)) != new[key, model]
    ]
    parts += [f"{key} no longer serves {model!r}" for key, model in sorted(old) if (key, model) not in new]
    return "; ".join(parts)


def _parsed_service(resource: Json) -> ParsedService:
    metadata = resource["metadata"]
    namespace, name = metadata.get("namespace", ""), metadata["name"]
    own, *others = served_names.name_claims(resource)
    service = RoutedService(
        namespace=namespace,
        name=name,
        model=own.served_name,
        created=metadata.get("creationTimestamp") or "",
        may_start=_may_start(resource),
        tenant_header=(((resource.get("spec") or {}).get("runtime") or {}).get("tenantHeader") or "").lower(),
        cold_start_s=float(((resource.get("status") or {}).get("coldStart") or {}).get("seconds") or 0),
    )
    return ParsedService(key=key(resource), uid=uid(resource), claims=(own, *others), service=service)


def _may_start(resource: Json) -> bool:
    """Whether a request for a service without replicas is worth waiting for."""
    spec, status = resource.get("spec") or {}, resource.get("status") or {}
    conditions = status.get("conditions") or ()
    if any(c.get("type") == names.CONDITION_STALLED and c.get("status") == "True" for c in conditions):
        return False
    match "Advisory" if spec.get("autoscaling") is None else spec["autoscaling"].get("mode", "Active"):
        case "Advisory":
            return bool(spec.get("replicas", 1))
        case "Paused":
            return bool(status.get("desiredReplicas"))
    return True


def holders_of(
    held_ids: Iterable[str],
    among: Iterable[RoutedService],
    readings: Mapping[str, StateReading],
    *,
    went_on_at: Callable[[str], str],
) -> dict[str, Holder]:
    """Which of these services, and which addresses, hold responses or running answers, by their instances; without
    those that cannot be reached. One pass over the endpoints, however many ids there are. An instance is a pod's own
    word, and clients know it: the id's service is compared as well.

    went_on_at: the address at which an answer goes on that another instance began, "" for none.
    """
    instances = {_instance(held_id, went_on_at(held_id), readings) for held_id in held_ids} - {""}
    found: dict[str, Holder] = {}
    for service in among if instances else ():
        for endpoint in service.reachable:
            reading = readings.get(endpoint.address)
            if reading is None or reading.state.instance not in instances:
                continue
            qualified = served_names.qualified_name(service.namespace, service.name)
            if http_apis.is_instance_of(reading.state.instance, qualified):
                found.setdefault(reading.state.instance, (service, endpoint.address))
    return found


def _instance(held_id: str, went_on_at: str, readings: Mapping[str, StateReading]) -> str:
    """That holds what an id names, "" for none."""
    reading = readings.get(went_on_at) if went_on_at else None
    return reading.state.instance if reading is not None else http_apis.instance_of(held_id)


def candidates(
    service: RoutedService,
    readings: Mapping[str, StateReading],
    *,
    now_s: float,
    inflight: Callable[[str], int],
    since: Callable[[str, float], tuple[int, float]],
) -> list[Candidate]:
    """The endpoints of a service that may be chosen now; none of them drains.

    readings: by address. inflight: own requests in flight at an address. since: those newer than a moment, and their
    uncached tokens. A pod reports that it drains before Kubernetes does. A pod that reports it is not ready yet has no
    load. One of last resort counts as any other while it has just reported that it serves; else only where no other
    does, while it reports that nothing but its stalled engine is wrong.
    """
    found: list[Candidate] = []
    stalled: list[Candidate] = []
    for endpoint in service.reachable:
        reading, requests = readings.get(endpoint.address), inflight(endpoint.address)
        if reading and reading.state.phase == "draining":
            continue
        if reading and (reading.state.phase != "ready" or now_s - reading.at_s > READING_MAX_AGE_S):
            reading = None
        serves = endpoint.takes_requests or (reading is not None and _serves(reading, now_s))
        if not serves and not (reading and _only_stalled(reading.state)):
            continue
        among = found if serves else stalled
        if reading is None:
            among.append(Candidate(address=endpoint.address, inflight=requests))
            continue
        recent, tokens = since(endpoint.address, reading.at_s)
        load = _load(reading, now_s)
        among.append(
            Candidate(address=endpoint.address, inflight=requests, recent=recent, recent_tokens=tokens, load=load)
        )
    return found or stalled


def _serves(reading: StateReading, now_s: float) -> bool:
    """Whether a pod has just reported that it is ready and that nothing is wrong."""
    state = reading.state
    well = state.phase == "ready" and not state.stalled_s and not state.message
    return well and now_s - reading.at_s <= FRESH_READING_S


def _only_stalled(state: RuntimeState) -> bool:
    """Whether a runtime that started gives no other reason than its engine for not being sent requests."""
    return state.stalled_s > 0 or not state.message


def _load(reading: StateReading, now_s: float) -> EndpointLoad:
    """What a pod reported, as far as it can be true; other speeds count as not measured."""
    state = reading.state
    return EndpointLoad(
        kind=f"{state.device}/{state.kernels}",
        age_s=now_s - reading.at_s + max(0.0, state.heartbeat_age_s),
        running=max(0, state.running),
        waiting=max(0, state.waiting),
        waiting_uncached_tokens=max(0, state.waiting_uncached_tokens),
        queue_s=_plausible(state.ttft.queue_s, PLAUSIBLE_QUEUE_S, otherwise=-1.0),
        prefill_tokens_per_s=_plausible(state.rates.prefill_tokens_per_s, PLAUSIBLE_PREFILL),
        stall_fraction=min(1.0, max(0.0, state.rates.stall_fraction)),
        decode_slope_s=_plausible(state.rates.decode_slope_s, PLAUSIBLE_SLOPE_S),
        max_sequences=max(0, state.max_sequences),
        room=queue_room(state),
    )


def _plausible(value: float, bounds: tuple[float, float], *, otherwise: float = 0.0) -> float:
    least, most = bounds
    return value if least <= value <= most else otherwise
