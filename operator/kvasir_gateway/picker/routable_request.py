"""From a body and headers to what routing has to know of a request, and to the service that should answer it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvasir_api import names, openai_errors, served_names
from kvasir_api.openai_errors import ApiError
from kvasir_gateway.model_routes import ModelRoute, RouteInputs
from kvasir_gateway.picker import request_parser
from kvasir_gateway.picker.destination import RoutableRequest
from kvasir_gateway.picker.request_parser import ParsedBody
from kvasir_gateway.picker.request_prefix import RequestPrefix
from kvasir_gateway.picker.tenant_gate import Caller, TenantGate
from kvasir_gateway.routing_table import RoutedService, RoutingTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """When an answer has to have ended. began_s: its request. timeout_s: where its route has none."""

    began_s: float
    timeout_s: float

    def at_s(self, route: ModelRoute | None) -> float:
        """On the clock of began_s."""
        own = route.spec.timeout_seconds if route is not None else None
        return self.began_s + (self.timeout_s if own is None else own)


def routable(
    body: bytes,
    request_id: str,
    path: str,
    headers: Mapping[str, str],
    *,
    table: RoutingTable,
    tenants: TenantGate,
    ends: Ends,
) -> tuple[RoutedService, RoutableRequest] | ApiError:
    """The service that should answer a request, and the request. headers: names in lower case.

    A request of the relay that goes on with an answer names the service that began it. A service that a route names and
    that does not exist has no endpoints; one that the caller may not use is not found.
    """
    parsed = request_parser.parse_body(body, path)
    if not isinstance(parsed, ParsedBody):
        return parsed
    relayed = headers.get(names.HEADER_RELAYED, "")
    begun_by = table.by_qualified.get(headers.get(names.HEADER_SERVICE, "")) if relayed else None
    route, missing = _route_of(parsed, table, tenants, headers), openai_errors.model_not_found(parsed.model or "")
    if begun_by is not None:
        service: RoutedService | ApiError = tenants.refusal(begun_by, headers, missing) or begun_by
    elif route is None:
        service = tenants.service_of(parsed, table, headers)
    else:
        named = [table.by_key(key) or _absent(route, key.partition(".")[2]) for key in route.services]
        usable = {one.key: one for one in tenants.usable(named, headers)}
        if not usable:  # before its rules are read: who may use none learns of no route
            return tenants.refusal(named[0], headers, missing) or missing
        caller = tenants.caller(_absent(route, route.name), headers, of_body=parsed.priority)
        prefix = RequestPrefix(parsed, path, caller.headers, body_bytes=len(body))
        inputs = _route_inputs(parsed, prefix, caller, headers, sticky=relayed or request_id)
        if route.rule(inputs) is None:
            return _no_rule(route)
        service = usable.get(route.target(inputs, usable) or "", missing)
    if not isinstance(service, RoutedService):
        return service
    caller = tenants.caller(service, headers, of_body=parsed.priority)
    return service, RoutableRequest(
        id=request_id,
        path=path,
        prefix=RequestPrefix(parsed, path, caller.headers, body_bytes=len(body)),
        until_s=ends.at_s(route),
        began_s=ends.began_s,
        streams=parsed.streams,
        response=parsed.response,
        relayed=relayed,
        route=route if begun_by is None else None,
        model=parsed.model,
        body=body if route is not None else b"",
        client=headers,
        caller=caller,
        priority=parsed.priority,
        tried=frozenset(filter(None, headers.get(names.HEADER_TRIED, "").split(","))) if relayed else frozenset(),
    )


def _route_inputs(
    parsed: ParsedBody, prefix: RequestPrefix, caller: Caller, headers: Mapping[str, str], *, sticky: str
) -> RouteInputs:
    """What rules are about. sticky: of a request without a session."""
    return RouteInputs(
        prompt_tokens=prefix.num_tokens,
        priority=request_parser.priority_of(parsed, caller.headers),
        headers=headers,
        sticky=prefix.session or sticky,
    )


def _route_of(
    parsed: ParsedBody, table: RoutingTable, tenants: TenantGate, headers: Mapping[str, str]
) -> ModelRoute | None:
    """By the model's name, which is the only service's where a body has none."""
    if parsed.model is not None:
        return table.routes.get(parsed.model)
    found = tenants.service_of(parsed, table, headers) if table.routes else None
    return table.routes.get(found.model) if isinstance(found, RoutedService) else None


def _no_rule(route: ModelRoute) -> ApiError:
    name = served_names.qualified_name(route.namespace, route.name)
    return openai_errors.invalid(f"No rule of ModelRoute {name} matches the request.", code="no_matching_rule")


def _absent(route: ModelRoute, name: str) -> RoutedService:
    return RoutedService(namespace=route.namespace, name=name, model=route.model, created="", may_start=False)
