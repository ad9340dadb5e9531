"""The requests that the picker holds: which of them go now, where to, and how the others wait.

Pure but for its counters: the picker decides where one request goes, and calls this for those that cannot go yet.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from kvasir_api import names, openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_gateway.held_places import HeldPlaces
from kvasir_gateway.hold_queue import HeldRequest, HoldQueue
from kvasir_gateway.inflight import ServiceCounts
from kvasir_gateway.picker import refusals, ttft_objective
from kvasir_gateway.picker.destination import Destination, RoutableRequest
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.request_parser import ImmediateResponse
from kvasir_gateway.picker.waiting_places import waiting_places
from kvasir_gateway.routing_table import RoutedService, RoutingTable, StateReading
from kvasir_gateway.wake_forecast import TurnForecast, WakeForecast

Outcome = Destination | ImmediateResponse
ASIDE_S: Final = 1.0
"""For which a refused request waits: within that the replica has reported again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRules:
    """What the picker decides for a held request. destination: where it goes now, None while it waits; by when its
    first token has to come, and whether it is the first of its service. refuse: the answer to one of a service (its
    key), by an error, in the format of its path. alike: equal for requests that are the same to external backends.
    due_s: when the first token of a request has to come, infinity for none. counts: of a service, by its key."""

    destination: Callable[[RoutedService, RoutableRequest, float, float, bool], Destination | None]
    refuse: Callable[[str, ApiError, str], ImmediateResponse]
    alike: Callable[[RoutableRequest], object]
    due_s: Callable[[RoutedService, RoutableRequest], float]
    counts: Callable[[str], ServiceCounts]


class HeldRequests:
    """queue: whose turn it is. Times are on the caller's clock."""

    def __init__(self, queue: HoldQueue, rules: HoldRules, metrics: GatewayMetrics) -> None:
        self._queue, self._rules, self._metrics = queue, rules, metrics
        self._waiting: dict[str, RoutableRequest] = {}
        self._table: RoutingTable | None = None
        self._gave_way: list[HeldRequest] = []
        self._aside: dict[str, tuple[HeldRequest, RoutableRequest]] = {}
        self._wakes, self._turns = WakeForecast(), TurnForecast()

    def may_hold(self, service: RoutedService) -> bool:
        """Whether a request of a service is worth holding."""
        return service.may_start and self._queue.limits.max_wait_s > 0

    def hold(
        self, service: RoutedService, request: RoutableRequest, num_bytes: int, now_s: float
    ) -> HeldRequest | ImmediateResponse:
        """Let a request wait for an endpoint, where one may come and there is room."""
        if not self.may_hold(service):
            return self.refuse(service, request, refusals.nothing_ready(service))
        held = HeldRequest(
            id=request.id,
            service=service.key,
            tenant=request.caller.turn or request.prefix.tenant(service.tenant_header),
            weight=request.caller.weight,
            num_bytes=num_bytes,
            since_s=now_s,
            until_s=request.until_s,
            due_s=self._rules.due_s(service, request) if service.ready else inf,
        )
        if request.avoided:
            return self._set_aside(service, held, request)
        if not self._queued(service, held, request):
            return self.refuse(service, request, refusals.queue_full(service))
        if not service.ready:
            self._wakes.begin(service.key, now_s)
        return held

    def _queued(self, service: RoutedService, held: HeldRequest, request: RoutableRequest) -> bool:
        gave_way = self._queue.add(held)
        if gave_way is None:
            return False
        self._gave_way += gave_way
        self._waiting[held.id] = request
        self._rules.counts(service.key).held_retried += request.is_retry
        return True

    def _set_aside(
        self, service: RoutedService, held: HeldRequest, request: RoutableRequest
    ) -> HeldRequest | ImmediateResponse:
        """A replica has refused the request that had room by its last report: it waits for the next one, beside the
        queue, so that one that is refused for what it is keeps no other back."""
        limits, num_bytes = self._queue.limits, sum(other.num_bytes for other, _ in self._aside.values())
        if len(self._aside) >= limits.max_requests or num_bytes + held.num_bytes > limits.max_bytes:
            return self.refuse(service, request, refusals.queue_full(service))
        self._aside[held.id] = held, request
        return held

    def _back(self, by_key: dict[str, RoutedService], now_s: float) -> Iterator[tuple[str, Outcome]]:
        """Those that were set aside until now: what becomes of them, where they do not join the queue."""
        for held, request in list(self._aside.values()):
            if now_s - held.since_s < ASIDE_S:
                continue
            del self._aside[held.id]
            request, service = replace(request, avoided=frozenset()), by_key.get(held.service)
            if service is None:
                yield held.id, self._rules.refuse(held.service, _not_found(held, request), request.path)
                continue
            destination = self._rules.destination(service, request, now_s, held.due_s, True)
            if destination is not None:
                yield held.id, destination
            elif not self.may_hold(service) or not self._queued(service, held, request):
                yield held.id, self.refuse(service, request, refusals.queue_full(service))

    def refuse(self, service: RoutedService, request: RoutableRequest, error: ApiError) -> ImmediateResponse:
        """Refuse a request that cannot wait. Where replicas may come, it would have been one for them."""
        self._rules.counts(service.key).shed += service.may_start and not request.is_retry
        return self._rules.refuse(service.key, error, request.path)

    def release(self, table: RoutingTable, now_s: float) -> list[tuple[str, Outcome]]:
        """Held requests that need not wait any more, by id: endpoints can take them, they have waited for too long,
        gave way to another one, or their service is gone."""
        by_key = {service.key: service for service in table.services}
        if table is not self._table:
            self._table = table
            self._follow_routes(table)
        gave_way, self._gave_way = [held for held in self._gave_way if held.id in self._waiting], []
        found: list[tuple[str, Outcome]] = [
            *((held.id, self._end_wait(by_key, held, now_s, "gave_way")) for held in gave_way),
            *((held.id, self._end_wait(by_key, held, now_s, "expired")) for held in self._queue.expired(now_s)),
            *self._back(by_key, now_s),
        ]
        for key in self._queue.services():
            while held := self._queue.first(key):
                outcome = self._next_outcome(by_key, held, now_s)
                if outcome is None:
                    found += self._overdue(by_key, key, now_s)
                    found += self._to_fallbacks(by_key, key, now_s)
                    break
                found.append((held.id, outcome))
        return found

    def places(self, table: RoutingTable, readings: dict[str, StateReading], now_s: float) -> HeldPlaces:
        """How the requests of the relay wait, by their ids there."""
        return waiting_places(
            table.services,
            self._queue,
            self._waiting,
            readings,
            wakes=self._wakes,
            turns=self._turns,
            now_s=now_s,
        )

    def stop_waiting(self, held: HeldRequest, now_s: float) -> None:
        """The client of a held request is gone; nothing happens where its wait has ended already."""
        self._aside.pop(held.id, None)
        if self._waiting.pop(held.id, None) is not None:
            self._queue.remove(held.id)
            self._rules.counts(held.service).abandoned += 1
            self._metrics.observe_hold(held.service, "aborted", now_s - held.since_s)

    def _overdue(self, by_key: dict[str, RoutedService], key: str, now_s: float) -> Iterator[tuple[str, Outcome]]:
        """Those behind the first of a service, which has to wait, whose objectives are over, for a full replica to
        decide. Where there is room that the first one alone does not fit into, they wait on, to take none of it."""
        for held in self._queue.overdue(key, now_s):
            outcome = self._next_outcome(by_key, held, now_s, is_first=False)
            if outcome is not None:
                yield held.id, outcome

    def _to_fallbacks(self, by_key: dict[str, RoutedService], key: str, now_s: float) -> Iterator[tuple[str, Outcome]]:
        """Those behind the first of a service, which has to wait, that a fallback of their route can take. Once none
        can, it is the same for all of the route and the tenant that are alike to external backends."""
        in_vain: set[tuple[object, ...]] = set()
        for held in list(self._queue.in_order(key)):
            request = self._waiting[held.id]
            if request.route is None or not request.route.spec.fallbacks:
                continue
            route = request.route.key_of(request.route.name)
            alike = (route, request.caller.turn, self._rules.alike(request))
            outcome = None if alike in in_vain else self._next_outcome(by_key, held, now_s, is_first=False)
            if outcome is not None:
                yield held.id, outcome
            else:
                in_vain.add(alike)

    def _next_outcome(
        self, by_key: dict[str, RoutedService], held: HeldRequest, now_s: float, *, is_first: bool = True
    ) -> Outcome | None:
        """What becomes of a request of a service whose turn it is, or of one behind it; None while it waits."""
        service, request = by_key.get(held.service), self._waiting[held.id]
        go = self._rules.destination
        destination = None if service is None else go(service, request, now_s, held.due_s, is_first)
        if service is None or (destination is None and not service.may_start):
            return self._end_wait(by_key, held, now_s, "stalled")
        if destination is not None:
            self._queue.release(held)
            del self._waiting[held.id]
            self._rules.counts(service.key).abandoned += destination.cluster != service.key
            self._wakes.end(service.key, now_s, woken=True)
            self._turns.went(service.key, now_s)
            self._metrics.observe_hold(service.key, "forwarded", now_s - held.since_s)
            return replace(destination, headers={**destination.headers, **_headers(held, request, now_s)})
        return None

    def _end_wait(
        self, by_key: dict[str, RoutedService], held: HeldRequest, now_s: float, outcome: str
    ) -> ImmediateResponse:
        """A held request is refused after all."""
        self._queue.remove(held.id)
        request = self._waiting.pop(held.id)
        self._metrics.observe_hold(held.service, outcome, now_s - held.since_s)
        service = by_key.get(held.service)
        self._rules.counts(held.service).expired += 1
        if service is None:
            return self._rules.refuse(held.service, _not_found(held, request), request.path)
        waited_s = now_s - held.since_s
        if outcome == "gave_way":
            error = refusals.queue_full(service)
        elif outcome == "expired" and service.ready:
            error = refusals.busy(service, waited_s=waited_s)
        else:
            error = refusals.nothing_ready(service, waited_s=waited_s)
        return self._rules.refuse(held.service, error, request.path)

    def _follow_routes(self, table: RoutingTable) -> None:
        """A route that was edited, or is gone, counts for requests that wait too: its fallbacks may answer them."""
        for held_id, request in self._waiting.items():
            if request.route is not None and request.model is not None:
                self._waiting[held_id] = replace(request, route=table.routes.get(request.model))


def _not_found(held: HeldRequest, request: RoutableRequest) -> ApiError:
    """Its service was deleted. By its client's name of the model: other names of the service are not the client's."""
    return openai_errors.model_not_found(request.model or held.service)


def _headers(held: HeldRequest, request: RoutableRequest, now_s: float) -> dict[str, str]:
    """That a replica gets in place of the client's own: what is left of its objective, and no number of tries, since
    the request was counted when it began to wait."""
    found = {}
    if held.due_s < inf and names.HEADER_TTFT in request.client:
        found[names.HEADER_TTFT] = ttft_objective.left_ms(held.due_s, now_s)
    if names.HEADER_RETRY_COUNT in request.client or request.is_referred:
        found[names.HEADER_RETRY_COUNT] = "0"
    return found
