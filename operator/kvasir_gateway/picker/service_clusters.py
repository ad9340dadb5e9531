"""The clusters of services, encoded when their endpoints change; of a thousand services one changes at a time.

An endpoint that takes no more requests stays in its cluster for a moment: the picker's answer for a request and a new
cluster reach Envoy's threads in any order, and a request that was on its way to the last endpoint would be refused.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kvasir_gateway.envoy.clusters import EncodedCluster, cluster, encoded
from kvasir_gateway.envoy.upstream_tls import UpstreamTls
from kvasir_gateway.parsed_objects import Endpoint
from kvasir_gateway.proto.cluster_pb2 import Cluster
from kvasir_gateway.routing_table import RoutedService

LEAVING_S: Final = 1.0
"""For which Envoy keeps the address of an endpoint that takes no more requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptCluster:
    """leaving: endpoints that left, and until when Envoy keeps them, on the caller's clock."""

    service: RoutedService
    authority_file: str
    leaving: Mapping[Endpoint, float]
    content: EncodedCluster


class ServiceClusters:
    """Keeps what the services of the last call had."""

    def __init__(self) -> None:
        self._kept: dict[str, _KeptCluster] = {}

    def of(self, services: Iterable[RoutedService], authority_file: str, *, now_s: float) -> dict[str, EncodedCluster]:
        """By the services' keys. authority_file: of the authority of pods that speak TLS, "" where none is known."""
        before, self._kept = self._kept, {}
        for service in services:
            key = service.key
            kept = before.get(key)
            leaving = _leaving(kept, service, now_s) if kept else {}
            if kept is None or (kept.service, kept.authority_file, kept.leaving) != (service, authority_file, leaving):
                content = encoded(_cluster(key, service.reachable, leaving, authority_file))
                kept = _KeptCluster(service=service, authority_file=authority_file, leaving=leaving, content=content)
            self._kept[key] = kept
        return {key: kept.content for key, kept in self._kept.items()}

    def settled_in_s(self, now_s: float) -> float | None:
        """Until the next endpoint that left goes from its cluster, None where none is to go."""
        until_s = [until_s for kept in self._kept.values() for until_s in kept.leaving.values()]
        return max(0.0, min(until_s) - now_s) if until_s else None


def _leaving(kept: _KeptCluster, service: RoutedService, now_s: float) -> dict[Endpoint, float]:
    there = {endpoint.address for endpoint in service.reachable}
    left = dict.fromkeys(kept.service.reachable, now_s + LEAVING_S) | dict(kept.leaving)
    return {one: until_s for one, until_s in left.items() if one.address not in there and until_s > now_s}


def _cluster(key: str, reachable: Collection[Endpoint], leaving: Collection[Endpoint], authority_file: str) -> Cluster:
    endpoints = [*reachable, *leaving]
    server_names = {one.address: one.server_name for one in endpoints if one.server_name and authority_file}
    return cluster(
        key,
        [one.address for one in reachable],
        last_resort={one.address for one in reachable if one.last_resort},
        leaving=[one.address for one in leaving],
        tls=UpstreamTls(authority_file=authority_file, server_names=server_names) if server_names else None,
    )
