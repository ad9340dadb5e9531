"""Holds what is known now and decides one request at a time; the streams and loops around it only carry messages.

Everything of time and chance arrives through the constructor. Runs in one event loop, so nothing is locked.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvasir_api import openai_errors, surfaces
from kvasir_api.state import GatewayState, ServiceDemand
from kvasir_gateway import table as tables
from kvasir_gateway.choose import Choice, Policy, choose
from kvasir_gateway.picker import door
from kvasir_gateway.picker.door import Answer
from kvasir_gateway.picker.instruments import Instruments
from kvasir_gateway.table import Read, Service, Table
from kvasir_gateway.tickets import Ticket, Tickets

BYTES_PER_TOKEN = 4
RETRY_AFTER_S = 2.0
"""Advice when nothing is ready: about one period of readings and readiness probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Where a request goes: a cluster of Envoy and addresses in it, best first."""

    cluster: str
    addresses: tuple[str, ...]


class Picker:
    """The state of the picker and its one decision.

    clock: monotonic seconds. draw: a non-negative random number for ties.
    """

    def __init__(
        self,
        *,
        instruments: Instruments,
        clock: Callable[[], float],
        draw: Callable[[], int],
        policy: Policy,
        max_body_bytes: int,
    ) -> None:
        self.table: Table = tables.EMPTY
        self.accepted: frozenset[str] = frozenset()
        self.reads: dict[str, Read] = {}
        self.tickets = Tickets()
        self._instruments = instruments
        self._clock = clock
        self._draw = draw
        self._policy = policy
        self._max_body_bytes = max_body_bytes

    def enter(self, method: str, target: str, headers: Mapping[str, str]) -> Answer | None:
        """The answer to a request's head; None when its body is needed."""
        path = target.partition("?")[0]
        return door.enter(method, path, headers, table=self.table, max_body_bytes=self._max_body_bytes)

    def pick(self, body: bytes, ticket_id: str, target: str = "") -> Forward | Answer:
        """Resolve the model, choose endpoints and open the ticket; or the answer that refuses.

        What only one pod holds leads to that pod: a stored response or a running answer that the path names, or the
        conversation of a response.
        """
        started_s = self._clock()
        path = target.partition("?")[0]
        response_id, chat_id = surfaces.named_response(path), surfaces.running_chat(path)
        if response_id:
            return self._held(response_id, openai_errors.response_not_found(response_id), ticket_id, path)
        if chat_id:
            return self._held(chat_id, openai_errors.answer_not_running(chat_id), ticket_id, path)
        asked = door.asked(body, path)
        if not isinstance(asked, door.Asked):
            return door.refusal(asked, path)
        service = self.table.by_model.get(asked.model)
        if service is None:
            return door.refusal(openai_errors.model_not_found(asked.model), path)
        self._seen(service, started_s)
        prompt_tokens = math.ceil(len(body) / BYTES_PER_TOKEN)
        choice = self._choose(service, prompt_tokens, started_s)
        if choice is None:
            self.tickets.count(service.key).refused += 1
            self._instruments.ended(service.key, "refused")
            return door.refusal(_nothing_ready(service), path)
        holder = self._holder(asked.response) if asked.response else None
        addresses = (holder[1],) if holder is not None and holder[0] is service else choice.addresses
        self._instruments.chosen(self._clock() - started_s)
        return self._forward(service, addresses, ticket_id, prompt_tokens, started_s)

    def _held(self, held_id: str, missing: openai_errors.ApiError, ticket_id: str, path: str) -> Forward | Answer:
        holder = self._holder(held_id)
        if holder is None:
            return door.refusal(missing, path)
        service, address = holder
        now_s = self._clock()
        self._seen(service, now_s)
        return self._forward(service, (address,), ticket_id, 0, now_s)

    def _seen(self, service: Service, now_s: float) -> None:
        count = self.tickets.count(service.key)
        count.requests += 1
        count.last_request_s = now_s

    def _holder(self, held_id: str) -> tuple[Service, str] | None:
        """Who holds a response or a running answer, as far as it takes requests."""
        instance = surfaces.held_by(held_id)
        for service in self.table.services:
            for endpoint in service.ready if service.key in self.accepted else ():
                read = self.reads.get(endpoint.address)
                if instance and read is not None and read.state.instance == instance:
                    return service, endpoint.address
        return None

    def _forward(
        self, service: Service, addresses: tuple[str, ...], ticket_id: str, prompt_tokens: int, now_s: float
    ) -> Forward:
        ticket = Ticket(
            id=ticket_id, service=service.key, address=addresses[0], prompt_tokens=prompt_tokens, opened_s=now_s
        )
        self.tickets.open(ticket)
        return Forward(cluster=service.key, addresses=addresses)

    def _choose(self, service: Service, prompt_tokens: int, now_s: float) -> Choice | None:
        if service.key not in self.accepted:  # Envoy does not know its cluster yet
            return None
        found = tables.candidates(
            service, self.reads, now_s=now_s, inflight=self.tickets.inflight, since=self.tickets.since
        )
        if not found:
            return None
        return choose(found, prompt_tokens=prompt_tokens, policy=self._policy, seed=self._draw())

    def ended(self, ticket_id: str, *, status: int, client_left: bool) -> None:
        """Envoy is done with a request."""
        ticket = self.tickets.close(ticket_id)
        if ticket is not None:
            self._instruments.ended(ticket.service, outcome(status, client_left=client_left))

    def lost(self, *, before_s: float) -> int:
        """Another Envoy stands there, which began at before_s: how many requests broke with the one before it."""
        broken = self.tickets.close_before(before_s)
        for ticket in broken:
            self._instruments.ended(ticket.service, outcome(0, client_left=False))
        return len(broken)

    def state(self) -> GatewayState:
        """The document that the autoscaler reads."""
        now_s = self._clock()
        return GatewayState(services=tuple(self._demand(service, now_s) for service in self.table.services))

    def _demand(self, service: Service, now_s: float) -> ServiceDemand:
        count = self.tickets.count(service.key)
        return ServiceDemand(
            namespace=service.namespace,
            name=service.name,
            inflight=count.inflight,
            requests=count.requests,
            refused=count.refused,
            last_request_age_s=-1.0 if count.last_request_s is None else now_s - count.last_request_s,
        )


def outcome(status: int, *, client_left: bool) -> str:
    """One word for how a forwarded request ended. Status 0 means that no answer began."""
    if client_left:
        return "aborted"
    if status == 0 or status >= 500:
        return "server_error"
    return "client_error" if status >= 400 else "ok"


def _nothing_ready(service: Service) -> openai_errors.ApiError:
    pods = len(service.endpoints)
    there = f"{pods} of its replicas are starting or leaving" if pods else "it has no replica"
    return openai_errors.unavailable(
        f"The model {openai_errors.quoted(service.model)} is not ready: {there}. Try again later.",
        retry_after_s=RETRY_AFTER_S,
        code="no_ready_replica",
    )
