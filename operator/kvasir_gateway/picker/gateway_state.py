"""What the picker counts of each service, for the autoscaler and for a comparison with Envoy; pure."""

from collections.abc import Mapping

from kvasir_api.state import GatewayState, ServiceDemand
from kvasir_gateway.active_requests import SETTLED_S, ServiceActivity
from kvasir_gateway.hold_queue import HoldQueue
from kvasir_gateway.inflight import InflightRequests, ServiceCounts
from kvasir_gateway.routing_table import RoutedService, RoutingTable


def gateway_state(
    table: RoutingTable,
    inflight: InflightRequests,
    held: HoldQueue,
    inherited: Mapping[str, int],
    *,
    now_s: float,
) -> GatewayState:
    """The whole document. inherited: by service, requests in flight that an earlier picker chose for. now_s: on the
    clock of the counts."""
    return GatewayState(
        services=tuple(
            _demand(service, inflight.counts(service.key), held, inherited=inherited.get(service.key, 0), now_s=now_s)
            for service in table.services
        )
    )


def service_activity(
    table: RoutingTable, inflight: InflightRequests, active: Mapping[str, int], *, now_s: float
) -> dict[str, ServiceActivity]:
    """What Envoy has of each service beside what the picker counts. active: by service, as Envoy reports it."""
    settled = inflight.settled(now_s - SETTLED_S)
    return {
        service.key: ServiceActivity(
            active=active.get(service.key, 0),
            counted=inflight.counts(service.key).inflight,
            settled=settled.get(service.key, 0),
        )
        for service in table.services
    }


def _demand(
    service: RoutedService, counts: ServiceCounts, held: HoldQueue, *, inherited: int, now_s: float
) -> ServiceDemand:
    return ServiceDemand(
        namespace=service.namespace,
        name=service.name,
        held=held.num_requests(service.key),
        held_bytes=held.num_bytes(service.key),
        inflight=counts.inflight + inherited,
        requests=counts.requests,
        refused=counts.refused,
        shed=counts.shed,
        expired=counts.expired,
        abandoned=counts.abandoned,
        held_retried=counts.held_retried,
        last_request_age_s=-1.0 if counts.last_request_s is None else now_s - counts.last_request_s,
    )
