"""A request on its way through the picker, and where it goes; values alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvasir_api import names, served_names
from kvasir_api.model_route import Unavailability
from kvasir_gateway.envoy.routes import BACKENDS, RELAY
from kvasir_gateway.model_routes import ModelRoute
from kvasir_gateway.picker import request_parser
from kvasir_gateway.picker.request_prefix import RequestPrefix
from kvasir_gateway.picker.tenant_gate import Caller
from kvasir_gateway.routing_table import RoutedService, RoutingTable

LEAST_TIMEOUT_S: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where a request goes: a cluster of Envoy and addresses in it, best first. timeout_s: for the rest of the answer.

    streams: it is a stream of events. service: NAMESPACE/NAME, "" for the relay. fallback: why its route's target does
    not answer. retries_refusals: where its first address refuses it for want of room, the next one may have it. body:
    that it has instead of its own, None for that. headers: that it gets. comes_back: it has those of another try too.
    """

    cluster: str
    addresses: tuple[str, ...] = ()
    timeout_s: float
    streams: bool = False
    service: str = ""
    fallback: Unavailability | None = None
    retries_refusals: bool = False
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    comes_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutableRequest:
    """A request for a service, as far as the choice needs it.

    began_s, until_s: when it came, and when its answer has to have ended, on the picker's clock. response: that it
    continues, "" for none. relayed: its id at the relay, "" where it does not come from there. route: that names its
    services, None for one service. model: that its body names, None for none. body: where another name may be put into
    it, else empty. within: addresses that it may go to, None for all. client: its headers as the client sent them.
    caller: who sends it. limits: headers of its answer that tell what is left of them. priority: of its body, None for
    none. is_ours: our own Envoy has it. tried: external backends (NAMESPACE/ROUTE/BACKEND) that failed under it.
    avoided: addresses that have just refused it. restored: it came back with another model's name than that of body.
    """

    id: str
    path: str
    prefix: RequestPrefix
    until_s: float
    began_s: float = 0.0
    streams: bool = False
    response: str = ""
    relayed: str = ""
    route: ModelRoute | None = None
    model: str | None = None
    body: bytes = b""
    within: frozenset[str] | None = None
    client: Mapping[str, str] = field(default_factory=dict)
    caller: Caller = field(default_factory=Caller)
    limits: Mapping[str, str] = field(default_factory=dict)
    priority: int | None = None
    is_ours: bool = True
    tried: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()
    restored: bool = False

    @property
    def is_referred(self) -> bool:
        """Whether it comes back from a replica that had no room for it."""
        return self.is_ours and names.HEADER_ORIGINAL_URL in self.client

    @property
    def answer(self) -> str:
        """Id of the answer with which the relay goes on, "" for a new one."""
        return self.client.get(names.HEADER_ANSWER, "") if self.relayed else ""

    @property
    def is_retry(self) -> bool:
        """Whether its client, or the relay, has sent it before, so that it is no further request of the service."""
        tries = self.client.get(names.HEADER_RETRY_COUNT, "").strip()
        return bool(self.answer or self.tried or self.is_referred or (tries.isdecimal() and tries.strip("0")))

    @property
    def resumes(self) -> bool:
        """Whether its stream goes on at another replica, by its client's word or else its route's. A client that
        requests the pieces goes on by itself."""
        of_route = "1" if self.route is not None and self.route.spec.resume_streams else "0"
        asked = self.client.get(names.HEADER_RESUME, of_route)
        return asked == "1" and names.HEADER_CONTINUATION not in self.client

    def left_s(self, now_s: float) -> float:
        """For the rest of the answer: never 0, which would be without an end to Envoy."""
        return max(LEAST_TIMEOUT_S, self.until_s - now_s)

    def part_of(self, service: RoutedService) -> RoutedService:
        """A service with those endpoints alone that it may go to."""
        part = service if self.within is None else service.within(self.within)
        if not self.avoided:
            return part
        return part.within({endpoint.address for endpoint in part.endpoints} - self.avoided)

    def body_for(self, service: RoutedService, table: RoutingTable) -> bytes | None:
        """The body with a name that the service's pods know; None where it has one."""
        if not self.body or self.model is None or service.backend or table.service(self.model) == service:
            return self.body if self.restored else None
        return request_parser.with_model(self.body, self.path, qualified(service))


def to_relay(request: RoutableRequest, now_s: float) -> Destination:
    """By the relay, which sends the request again. A replica that refused it has counted it."""
    again = {names.HEADER_RETRY_COUNT: "1"} if request.is_referred else {}
    resumes = {names.HEADER_RESUME: "1"} if request.resumes else {}
    return Destination(
        cluster=RELAY,
        timeout_s=request.left_s(now_s),
        streams=request.streams,
        body=request.body if request.restored else None,
        headers={**request.limits, **again, **resumes},
        comes_back=request.is_referred,
    )


def to_backend(service: RoutedService, request: RoutableRequest, now_s: float) -> Destination:
    """To an external backend, by the relay's process, which has its address and key."""
    return Destination(
        cluster=BACKENDS,
        timeout_s=request.left_s(now_s),
        streams=request.streams,
        service=qualified(service),
        headers={names.HEADER_BACKEND: service.backend, names.HEADER_BACKEND_MODEL: service.model},
        comes_back=request.is_referred,
    )


def qualified(service: RoutedService) -> str:
    """NAMESPACE/NAME, a model name that its pods always know."""
    return served_names.qualified_name(service.namespace, service.name)
