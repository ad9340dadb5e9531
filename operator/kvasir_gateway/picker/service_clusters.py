"""The clusters of services, encoded when their endpoints change; of a thousand services one changes at a time."""

from collections.abc import Iterable

from kvasir_gateway.envoy.clusters import EncodedCluster, cluster, encoded
from kvasir_gateway.envoy.upstream_tls import UpstreamTls
from kvasir_gateway.parsed_objects import Endpoint
from kvasir_gateway.proto.cluster_pb2 import Cluster
from kvasir_gateway.routing_table import RoutedService


class ServiceClusters:
    """Keeps what the services of the last call had."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[RoutedService, str, EncodedCluster]] = {}

    def of(self, services: Iterable[RoutedService], authority_file: str) -> dict[str, EncodedCluster]:
        """By the services' keys. authority_file: of the authority of pods that speak TLS, "" where none is known."""
        before, self._kept = self._kept, {}
        for service in services:
            key = service.key
            kept = before.get(key)
            if kept is None or kept[:2] != (service, authority_file):
                kept = service, authority_file, encoded(_cluster(key, service.reachable, authority_file))
            self._kept[key] = kept
        return {key: content for key, (_, _, content) in self._kept.items()}


def _cluster(key: str, endpoints: Iterable[Endpoint], authority_file: str) -> Cluster:
    server_names = {one.address: one.server_name for one in endpoints if one.server_name and authority_file}
    return cluster(
        key,
        [one.address for one in endpoints],
        last_resort={one.address for one in endpoints if one.last_resort},
        tls=UpstreamTls(authority_file=authority_file, server_names=server_names) if server_names else None,
    )
