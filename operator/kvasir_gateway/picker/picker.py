"""Holds the routing state and decides one request at a time; the servers and loops around it only carry messages.

Clock and randomness arrive through the constructor. Runs in one event loop, so it needs no lock.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf

from kvasir_api import names, openai_errors
from kvasir_api.model_route import Unavailability
from kvasir_api.state import GatewayState
from kvasir_gateway import routing_table
from kvasir_gateway.choice_records import ChoiceInputs, ChoiceRecords
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.held_places import HeldPlaces
from kvasir_gateway.hold_queue import HeldRequest, HoldLimits, HoldQueue
from kvasir_gateway.model_routes import ServiceChoice, choose_service
from kvasir_gateway.picker import referrals, refusals, request_parser, ttft_objective
from kvasir_gateway.picker.destination import Destination, RoutableRequest, qualified, to_backend, to_relay
from kvasir_gateway.picker.external_backends import ExternalBackends
from kvasir_gateway.picker.gateway_state import gateway_state
from kvasir_gateway.picker.held_ids import HeldIds, held_ids
from kvasir_gateway.picker.held_requests import HeldRequests, HoldRules
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.referrals import Referrals
from kvasir_gateway.picker.request_ends import RequestEnds
from kvasir_gateway.picker.request_parser import ImmediateResponse, ParsedBody, RequestBounds
from kvasir_gateway.picker.request_prefix import RequestPrefix
from kvasir_gateway.picker.routable_request import Ends, routable
from kvasir_gateway.picker.tenant_gate import TenantGate
from kvasir_gateway.placements import PlacementEvent
from kvasir_gateway.router import EndpointRouter, RoutedRequest, unavailability
from kvasir_gateway.routing_table import Holder, RoutedService, RoutingTable, StateReading

RELAY_SILENT_S = 5.0
"""A relay that has not asked for places for so long gets no requests."""
_Attempted = tuple[RoutedRequest | None, Unavailability | None]


class Picker:
    """The state of the picker and its one decision.

    clock: monotonic seconds. draw: a non-negative random number for ties. limits: of what is held.
    publish: sends what this gateway forwards, and that it ended, to the others. wall: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        draw: Callable[[], int],
        policy: ChoicePolicy,
        bounds: RequestBounds,
        limits: HoldLimits | None = None,
        publish: Callable[[PlacementEvent], None] = lambda _: None,
        wall: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.table: RoutingTable = routing_table.EMPTY
        self.accepted_clusters: frozenset[str] = frozenset()
        self.readings: dict[str, StateReading] = {}
        self.router, self._draw = EndpointRouter(policy=policy, draw=draw), draw
        self.inflight = self.router.inflight
        self.choices, self._wall = ChoiceRecords(policy), wall
        self.held = HoldQueue(limits or HoldLimits())
        self.tenants = TenantGate(clock=clock, wall=wall, publish=publish)
        self._relay_asked_s = float("-inf")
        self.backends = ExternalBackends()
        rules = HoldRules(
            destination=self._destination,
            refuse=self._refused,
            alike=self.backends.alike,
            due_s=self._due_s,
            counts=self.inflight.counts,
        )
        self._holds = HeldRequests(self.held, rules, metrics)
        self._referrals = Referrals()
        self.ends = RequestEnds(
            self.router, self.tenants, metrics, publish=publish, clock=clock, forget=self._referrals.forget
        )
        self._metrics, self._publish = metrics, publish
        self._clock = clock
        self._bounds = bounds

    def respond_to_head(self, method: str, target: str, headers: Mapping[str, str]) -> ImmediateResponse | None:
        """The answer to a request's head; None when its body is needed."""
        path, most = target.partition("?")[0], self._bounds.max_body_bytes
        if referrals.is_elsewhere(headers):
            return request_parser.error_response(refusals.SENT_ELSEWHERE, path)
        table = self.tenants.listed(self.table, headers) if request_parser.lists_models(path) else self.table
        if not isinstance(table, RoutingTable):
            return request_parser.error_response(table, path)
        return request_parser.respond_to_head(method, path, headers, table=table, max_body_bytes=most)

    def pick(
        self, body: bytes, inflight_id: str, target: str = "", headers: Mapping[str, str] | None = None
    ) -> Destination | ImmediateResponse | HeldRequest:
        """Resolve the model, choose endpoints and count the request as in flight; or the error that answers it; or it
        is held, and a later `release` has its outcome.

        A request about something that one pod holds goes to that pod: a stored response or a running answer that the
        path names, or the conversation of a response. headers: of the client, names in lower case.
        """
        started_s, headers = self._clock(), headers or {}
        found = self._requested(body, inflight_id, target, headers, started_s)
        if not isinstance(found, tuple):
            return found
        service, request = found
        relays = request.streams and not request.relayed and self._relay_listens(started_s)
        if request.relayed:
            self.ends.comes_from_relay(request.relayed)
        destination = None if relays and request.resumes else self._destination(service, request, started_s)
        if destination is None and relays and (request.resumes or self._holds.may_hold(service)):
            self.ends.goes_to_relay(inflight_id, service.key, is_retry=request.is_retry)
            return to_relay(request, started_s)
        return destination or self._holds.hold(service, request, len(body), started_s)

    def pick_now(
        self, body: bytes, request_id: str, target: str, headers: Mapping[str, str], *, within: frozenset[str] | None
    ) -> Destination | ImmediateResponse:
        """As pick, for a proxy that holds no request. within: addresses of its pool, None for all."""
        now_s = self._clock()
        found = self._requested(body, request_id, target, headers, now_s, within=within)
        if isinstance(found, tuple):
            service, request = found
            request = replace(request, within=within, is_ours=False)
            destination = self._destination(service, request, now_s)  # past those that wait: its replica decides
            found = destination or self._holds.refuse(service, request, refusals.nothing_ready(service))
        if isinstance(found, Destination):
            self.ends.expect_elsewhere(request_id, found.cluster)
        return found

    def _requested(
        self,
        body: bytes,
        request_id: str,
        target: str,
        headers: Mapping[str, str],
        now_s: float,
        *,
        within: frozenset[str] | None = None,
    ) -> tuple[RoutedService, RoutableRequest] | Destination | ImmediateResponse:
        """The request and its service, where no single pod has what it is about and its tenant may send it now."""
        path = target.partition("?")[0]
        ends = Ends(began_s=now_s, timeout_s=self._bounds.timeout_s)
        if held := held_ids(path, body):
            if isinstance(held, ImmediateResponse):
                return held
            prefix = RequestPrefix(ParsedBody(model=None), path, headers, body_bytes=len(body))
            request = RoutableRequest(
                id=request_id,
                path=path,
                prefix=prefix,
                until_s=ends.at_s(None),
                began_s=now_s,
                client=headers,
                within=within,
            )
            return self._pick_holder(held, request)
        original = self._referrals.original(body, path, request_id, headers)
        body = body if original is None else original
        found = routable(body, request_id, path, headers, table=self.table, tenants=self.tenants, ends=ends)
        if isinstance(found, openai_errors.ApiError):
            return request_parser.error_response(found, path)
        service, request = found
        if offer := self._referrals.take(request):
            self.ends.referred(request.id)
            request = replace(request, began_s=offer.began_s, until_s=offer.until_s, avoided=offer.refused)
            return service, replace(request, body=original, restored=True) if original is not None else request
        if request.relayed:
            return found
        self._count_arrival(service, now_s)
        caller, prefix, model = request.caller, request.prefix, request.model or ""
        self.tenants.follow(caller, request_id, prefix, service=service.key, path=path, model=model)
        limits, refusal = self.tenants.enter(caller, request_id, tokens=prefix.num_tokens, until_s=request.until_s)
        if refusal is not None:
            return self._refused(service.key, refusal, path, limits)
        return service, replace(request, limits=limits) if limits else request

    def _destination(
        self,
        service: RoutedService,
        request: RoutableRequest,
        now_s: float,
        due_s: float | None = None,
        is_first: bool = True,
    ) -> Destination | None:
        """Where a request goes; None where no endpoint may be chosen, or others come before it. due_s: of one that is
        held, None for others. is_first: of those that are held for its service; one that is not takes no room there.
        """
        for held_by, address in self._holders((request.response,), self._services_of(service, request), request):
            self._metrics.observe_choice(held_by.key, "holder", self._clock() - now_s)
            self._record(held_by, request, ChoiceInputs(), address)
            return self._forward(held_by, (address,), request, None, now_s)
        choice = self._choice(service, request, now_s, is_new=due_s is None and request.is_ours, is_first=is_first)
        chosen, routed = self.table.by_key(choice.service), choice.found
        if chosen is None or routed is None or self._waits_for_room(service, request, routed, now_s, due_s):
            return None
        if not is_first and chosen.key == service.key and not routed.choice.is_saturated:
            return None
        if chosen.backend and not request.relayed:
            return to_relay(request, now_s)
        if not chosen.backend:
            self._record(chosen, request, routed.inputs)
        self._metrics.observe_choice(chosen.key, routed.choice.reason, self._clock() - now_s)
        if request.route is not None:
            self._metrics.count_routed(request.route.key_of(request.route.name), chosen.name, choice.fallback)
        destination = self._forward(chosen, routed.choice.addresses, request, routed, now_s)
        return replace(destination, fallback=choice.fallback) if choice.fallback else destination

    def _waits_for_room(
        self,
        service: RoutedService,
        request: RoutableRequest,
        routed: RoutedRequest,
        now_s: float,
        due_s: float | None,
    ) -> bool:
        """Whether a request is held that every replica would refuse. One that would wait for longer than its objective
        allows is not: a replica decides that, and its answer has a Retry-After."""
        if not routed.choice.is_saturated or not request.is_ours or not self._holds.may_hold(service):
            return False
        wait_s = min((cost.wait_s for cost in routed.choice.costs), default=0.0)
        return now_s + wait_s < (self._due_s(service, request) if due_s is None else due_s)

    def _due_s(self, service: RoutedService, request: RoutableRequest) -> float:
        readings = filter(None, (self.readings.get(endpoint.address) for endpoint in service.ready))
        return ttft_objective.due_s(request.client, (r.state for r in readings), began_s=request.began_s)

    def _services_of(self, service: RoutedService, request: RoutableRequest) -> Iterable[RoutedService]:
        """Those that may hold a response that the request continues."""
        return (
            (service,)
            if request.route is None
            else filter(None, (self._usable(key, request) for key in request.route.services))
        )

    def _choice(
        self, service: RoutedService, request: RoutableRequest, now_s: float, *, is_new: bool, is_first: bool
    ) -> ServiceChoice[RoutedRequest]:
        """The service that answers, and the endpoints that are chosen in it."""
        saturated_s = request.route.spec.saturated_seconds if request.route is not None else None

        def attempt(key: str) -> _Attempted:
            tried, routed = self._usable(key, request), None
            if tried is not None and tried.backend:
                checked, listens = self.tenants.is_closed(tried.namespace), self._relay_listens(now_s)
                return self.backends.attempt(tried, request, checked=checked, listens=listens)
            others_wait = (is_new or key != service.key) and bool(self.held.num_requests(key))
            if others_wait and tried is not None and tried.ready:
                return None, "Saturated"
            # Envoy knows no endpoint of a cluster that it has not accepted.
            if tried is not None and not others_wait and key in self.accepted_clusters:
                routed = self.router.choose(request.part_of(tried), request.prefix, self.readings, now_s=now_s)
            if tried is not None and tried.ready and routed is None and request.avoided:
                return None, "Saturated"  # all have just refused it
            why = unavailability(tried, routed, self.readings, saturated_s=saturated_s)
            return routed, why if is_first or key != service.key else why or "Saturated"

        if request.route is None:
            return ServiceChoice(service=service.key, found=attempt(service.key)[0])
        return choose_service(request.route, service.key, attempt)

    def _usable(self, key: str, request: RoutableRequest) -> RoutedService | None:
        """A service that a route names; None where there is none, or its tenant may not use it."""
        found = self.table.by_key(key)
        if found is None or request.route is None:
            return found
        return None if self.tenants.refusal(found, request.client, openai_errors.model_not_found("")) else found

    def _record(self, service: RoutedService, request: RoutableRequest, inputs: ChoiceInputs, holder: str = "") -> None:
        self.choices.add(request.prefix.request_id, qualified(service), inputs, at_s=self._wall(), holder=holder)

    def _relay_listens(self, now_s: float) -> bool:
        return now_s - self._relay_asked_s < RELAY_SILENT_S

    def release(self) -> list[tuple[str, Destination | ImmediateResponse]]:
        """Held requests that need not wait any more, by id, and what becomes of them."""
        return self._holds.release(self.table, self._clock())

    def places(self) -> HeldPlaces:
        """How the requests of the relay wait, by their ids there. The relay asks all the time; while it does, it gets
        requests."""
        now_s = self._relay_asked_s = self._clock()
        return self._holds.places(self.table, self.readings, now_s)

    def stop_waiting(self, held: HeldRequest) -> None:
        """The client of a held request is gone."""
        self._holds.stop_waiting(held, self._clock())

    def _refused(
        self, service: str, error: openai_errors.ApiError, path: str, headers: Mapping[str, str] | None = None
    ) -> ImmediateResponse:
        self.inflight.counts(service).refused += 1
        self._metrics.count_request(service, "refused")
        return request_parser.error_response(refusals.spread(error, self._draw()), path, headers)

    def _pick_holder(self, held: HeldIds, request: RoutableRequest) -> Destination | ImmediateResponse:
        """Only among services that the caller may use, so that it learns nothing of others."""
        usable = self.tenants.usable(self.table.services, request.client)
        limits, refusal = self.tenants.count(usable, request.client) if held.aborts else ({}, None)
        if refusal is not None:  # also of an abort that would find nothing
            return request_parser.error_response(refusal, request.path, limits)
        found = tuple(self._holders(held.ids, usable, request))
        if len(found) != 1:
            has_use = held.aborts and usable  # an id that is not running is no error then
            missing = held.missing if has_use else self.tenants.not_found(request.client, held.missing)
            return held.unheld(len(found), missing, request.path)
        (service, address), now_s = found[0], self._clock()
        caller = self.tenants.caller(service, request.client)
        self.tenants.follow(caller, request.id, request.prefix, service=service.key, path=request.path)
        if not held.aborts:  # else repeated aborts would keep a service awake
            self._count_arrival(service, now_s)
        return self._forward(service, (address,), replace(request, caller=caller, limits=limits), None, now_s)

    def _count_arrival(self, service: RoutedService, now_s: float) -> None:
        count = self.inflight.counts(service.key)
        count.requests += 1
        count.last_request_s = now_s

    def _holders(
        self, ids: Iterable[str], among: Iterable[RoutedService], request: RoutableRequest
    ) -> Iterable[Holder]:
        accepted = (request.part_of(service) for service in among if service.key in self.accepted_clusters)
        went_on_at = self.router.went_on_at
        return routing_table.holders_of(ids, accepted, self.readings, went_on_at=went_on_at).values()

    def _forward(
        self,
        service: RoutedService,
        addresses: tuple[str, ...],
        request: RoutableRequest,
        routed: RoutedRequest | None,
        now_s: float,
    ) -> Destination:
        address, answer = addresses[0], request.answer
        placement = self.router.forward(request.id, service, address, routed, now_s=now_s, answer=answer)
        if placement is not None:
            self._publish(placement)
        self.tenants.audit.forwarded(request.id, address, relayed=request.relayed)
        if service.backend:
            return to_backend(service, request, now_s)
        may_refer = placement is not None and routed is not None and self._may_refer(service, request, routed)
        body = request.body_for(service, self.table)
        refers = self._referrals.offer(request, address, body) if may_refer else {}
        # Services of a route may have different names for the header that names the tenant.
        caller = (
            request.caller
            if request.route is None
            else self.tenants.caller(service, request.client, of_body=request.priority)
        )
        return Destination(
            cluster=service.key,
            addresses=addresses,
            timeout_s=request.left_s(now_s),
            streams=request.streams,
            service=qualified(service),
            retries_refusals=routed is not None and routed.choice.has_alternative,
            body=body,
            headers={**caller.added, **request.limits, **_kv_peer(routed), **refers},
            comes_back=request.is_referred,
        )

    def _may_refer(self, service: RoutedService, request: RoutableRequest, routed: RoutedRequest) -> bool:
        """Whether a replica without room sends the request back. One with an objective, and one with more sequences
        than it ever takes, it refuses at once."""
        fits = routed.num_taken(routed.choice.addresses[0]) == request.prefix.num_sequences
        return request.is_ours and fits and self._holds.may_hold(service) and self._due_s(service, request) == inf

    def request_ended(
        self, inflight_id: str, *, status: int, client_left: bool, is_cut: bool = False, address: str = ""
    ) -> None:
        """Envoy has logged the end of a request. is_cut: before its answer was whole. address: of the replica that had
        it last, "" for none."""
        self.ends.ended(inflight_id, status=status, client_left=client_left, is_cut=is_cut, address=address)

    def state(self) -> GatewayState:
        """The document that the autoscaler reads."""
        return gateway_state(self.table, self.inflight, self.held, self.ends.inherited, now_s=self._clock())


def _kv_peer(routed: RoutedRequest | None) -> Mapping[str, str]:
    return {names.HEADER_KV_PEER: routed.kv_peer} if routed is not None and routed.kv_peer else {}
