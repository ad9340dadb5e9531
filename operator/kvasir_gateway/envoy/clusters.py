"""The clusters that Envoy may route to, one per service, as the messages that Envoy discovers.

Pure data. Endpoints are part of their cluster: everything of a service changes at once. Envoy builds a cluster that
changed beside the old one; streams of the old one end by themselves.
"""

import hashlib
import ipaddress
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from socket import SOL_TCP, TCP_USER_TIMEOUT
from typing import Final

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.wrappers_pb2 import UInt32Value

from kvasir_api import names
from kvasir_gateway.envoy import upstream_tls
from kvasir_gateway.envoy.bootstrap import HTTP_OPTIONS, MAX_AT_ONCE, MAX_RETRIES, TYPES
from kvasir_gateway.envoy.upstream_tls import UpstreamTls, typed
from kvasir_gateway.proto import cluster_pb2 as pb

CLUSTER_TYPE: Final = f"{TYPES}.config.cluster.v3.Cluster"
POLICIES: Final = "extensions.load_balancing_policies"
UPSTREAM_IDLE_S: Final = 4
"""Idle connections are closed before the pod does it (uvicorn: 5 s), so that none is used while it closes."""

CONNECT_S: Final = 1
TLS_CONNECT_S: Final = 5
"""A handshake is answered by the pod's event loop, which may be late; a connection alone by its kernel."""

VANISHED_S: Final = 30
"""A pod whose kernel is silent for so long has vanished with its node: what it was to answer fails, and a stream that
may be resumed goes on elsewhere. Shorter than Kubernetes needs to call a node lost (40 s and more), longer than a
network needs to find another path."""
KEEPALIVE_S: Final = 10
KEEPALIVE_PROBES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedCluster:
    """content: the message. version: a hash of it. reachable: it has an address for new requests."""

    content: bytes
    version: str
    reachable: bool


def encoded(cluster: pb.Cluster) -> EncodedCluster:
    """The same bytes for the same cluster, in each process."""
    content = cluster.SerializeToString(deterministic=True)
    return EncodedCluster(
        content=content,
        version=hashlib.sha256(content).hexdigest()[:16],
        reachable=bool(cluster.load_assignment.endpoints[0].lb_endpoints),
    )


def cluster(
    name: str,
    addresses: Iterable[str],
    *,
    last_resort: Container[str] = (),
    leaving: Iterable[str] = (),
    tls: UpstreamTls | None = None,
) -> pb.Cluster:
    """A cluster with the addresses that may be used; Envoy never falls back to others, which are absent.

    last_resort: of these, those that Envoy may use only where the picker names them, while there are others. leaving:
    further ones, for requests that the picker sent there before they left. tls: None where none of them speaks it.
    Raises ValueError for an address that is no IP address with a port.
    """
    made = pb.Cluster()
    made.CopyFrom(_common())
    made.name = made.load_assignment.cluster_name = name
    server_names = tls.server_names if tls else {}
    made.load_assignment.endpoints.extend(_endpoints(list(addresses), last_resort, list(leaving), server_names))
    if tls:
        made.connect_timeout.FromSeconds(TLS_CONNECT_S)
        made.transport_socket_matches.extend(upstream_tls.socket_matches(tls))
    return made


@cache
def _common() -> pb.Cluster:
    """What all clusters have."""
    return pb.Cluster(
        type=pb.Cluster.STATIC,
        connect_timeout=Duration(seconds=CONNECT_S),
        typed_extension_protocol_options={HTTP_OPTIONS: _http_options()},
        circuit_breakers=pb.CircuitBreakers(
            thresholds=[
                pb.CircuitBreakers.Thresholds(
                    max_connections=_count(MAX_AT_ONCE),
                    max_pending_requests=_count(MAX_AT_ONCE),
                    max_requests=_count(MAX_AT_ONCE),
                    max_retries=_count(MAX_RETRIES),
                )
            ]
        ),
        outlier_detection=_outliers(),
        upstream_connection_options=pb.UpstreamConnectionOptions(tcp_keepalive=_keepalive()),
        upstream_bind_config=pb.BindConfig(socket_options=[_unacknowledged()]),
        load_balancing_policy=_policy(),
    )


def _keepalive() -> pb.TcpKeepalive:
    """For a stream, on which the pod alone sends: its kernel answers, however busy it is."""
    interval = (VANISHED_S - KEEPALIVE_S) // KEEPALIVE_PROBES
    return pb.TcpKeepalive(
        keepalive_time=_count(KEEPALIVE_S),
        keepalive_interval=_count(interval),
        keepalive_probes=_count(KEEPALIVE_PROBES),
    )


def _unacknowledged() -> pb.SocketOption:
    """For a request that is on its way, which no keepalive watches; the kernel alone would send it again for a quarter
    of an hour."""
    return pb.SocketOption(
        description="TCP_USER_TIMEOUT", level=SOL_TCP, name=TCP_USER_TIMEOUT, int_value=VANISHED_S * 1000
    )


def _http_options() -> Any:
    common = pb.HttpProtocolOptions.CommonOptions(idle_timeout=Duration(seconds=UPSTREAM_IDLE_S))
    http1 = pb.HttpProtocolOptions.ExplicitHttpConfig(http_protocol_options=pb.HttpProtocolOptions.Http1Options())
    options = pb.HttpProtocolOptions(common_http_protocol_options=common, explicit_http_config=http1)
    return typed("extensions.upstreams.http.v3.HttpProtocolOptions", options)


def _endpoints(
    addresses: Iterable[str], last_resort: Container[str], leaving: Iterable[str], server_names: Mapping[str, str]
) -> Iterable[pb.LocalityLbEndpoints]:
    """By priority: without the picker's word, as for a second try, Envoy goes to the first one that has a host. The
    first group is empty where no address takes new requests."""
    first = [one for one in addresses if one not in last_resort]
    last = [one for one in addresses if one in last_resort]
    found = [[_endpoint(one, server_names.get(one, "")) for one in group] for group in (first, last, leaving) if group]
    if not (first or last):
        found.insert(0, [])
    return [pb.LocalityLbEndpoints(priority=priority, lb_endpoints=hosts) for priority, hosts in enumerate(found)]


def _endpoint(address: str, server_name: str) -> pb.LbEndpoint:
    host, _, port = address.rpartition(":")
    plain = str(ipaddress.ip_address(host.strip("[]")))
    where = pb.Address(socket_address=pb.SocketAddress(address=plain, port_value=int(port)))
    return pb.LbEndpoint(endpoint=pb.Endpoint(address=where), metadata=upstream_tls.endpoint_metadata(server_name))


def _outliers() -> pb.OutlierDetection:
    """Ejects only a host that cannot be connected to, for a moment. Errors that it answers go to the client."""
    return pb.OutlierDetection(
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure=_count(3),
        enforcing_consecutive_local_origin_failure=_count(100),
        enforcing_local_origin_success_rate=_count(0),
        enforcing_consecutive_5xx=_count(0),
        enforcing_consecutive_gateway_failure=_count(0),
        enforcing_success_rate=_count(0),
        enforcing_failure_percentage=_count(0),
        interval=Duration(seconds=1),
        base_ejection_time=Duration(seconds=3),
        max_ejection_percent=_count(50),
    )


def _policy() -> pb.LoadBalancingPolicy:
    """The picker's list comes first; a host outside of this cluster is skipped. Least-request is the fallback."""
    override = pb.OverrideHost(
        override_host_sources=[pb.OverrideHost.OverrideHostSource(header=names.HEADER_DESTINATION)],
        fallback_policy=_only("least_request", typed(f"{POLICIES}.least_request.v3.LeastRequest")),
    )
    return _only("override_host", typed(f"{POLICIES}.override_host.v3.OverrideHost", override))


def _only(name: str, config: Any) -> pb.LoadBalancingPolicy:
    extension = pb.TypedExtensionConfig(name=f"envoy.load_balancing_policies.{name}", typed_config=config)
    return pb.LoadBalancingPolicy(policies=[pb.LoadBalancingPolicy.Policy(typed_extension_config=extension)])


def _count(number: int) -> UInt32Value:
    return UInt32Value(value=number)
