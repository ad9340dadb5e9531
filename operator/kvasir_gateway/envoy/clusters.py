"""The clusters that Envoy may route to, one per service, as a discovery response in a file.

Pure data. Endpoints are part of their cluster: everything changes in one rename, and Envoy keeps one watch (it opens an
inotify instance per watched file, of which a user has 128). Envoy leaves a cluster that did not change as it is.
"""

import hashlib
import ipaddress
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from kvasir_api import names
from kvasir_gateway.envoy import upstream_tls
from kvasir_gateway.envoy.bootstrap import TYPES, http_options, unlimited
from kvasir_gateway.envoy.upstream_tls import UpstreamTls

Config = dict[str, Any]
MOST_ENCODED = 4096
UPSTREAM_IDLE_S = 4
"""Idle connections are closed before the pod does it (uvicorn: 5 s), so that none is used while it closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersFile:
    """Content of the clusters file. version: a hash of it, which Envoy reports once it has accepted the content.
    clusters: those that have an address: Envoy has no fallback in one without."""

    version: str
    content: bytes
    clusters: frozenset[str]


def clusters_file(
    addresses: Mapping[str, Iterable[str]],
    *,
    last_resort: Container[str] = frozenset(),
    tls: UpstreamTls | None = None,
) -> ClustersFile:
    """Clusters by name with the addresses that may be used; Envoy never falls back to others, which are absent.

    last_resort: of these, those that Envoy may use only where the picker names them, while there are others. tls: None
    where none of them speaks it.
    """
    listed = {name: tuple(found) for name, found in sorted(addresses.items())}
    server_names = tls.server_names if tls else {}
    clusters = [
        msgspec.Raw(
            _encoded(
                name,
                found,
                tuple(address in last_resort for address in found),
                upstream_tls.of_hosts(tls, server_names, found),
            )
        )
        for name, found in listed.items()
    ]
    resources = msgspec.json.encode(clusters)
    version = hashlib.sha256(resources).hexdigest()[:16]
    content = msgspec.json.encode({"version_info": version, "resources": msgspec.Raw(resources)})
    return ClustersFile(version=version, content=content, clusters=frozenset(filter(listed.get, listed)))


@lru_cache(maxsize=MOST_ENCODED)
def _encoded(name: str, addresses: tuple[str, ...], is_last_resort: tuple[bool, ...], tls: UpstreamTls | None) -> bytes:
    """A cluster as JSON. Of a thousand services one changes at a time."""
    last_resort = {address for address, is_last in zip(addresses, is_last_resort, strict=True) if is_last}
    return msgspec.json.encode(_cluster(name, addresses, last_resort, tls))


def _cluster(name: str, addresses: Sequence[str], last_resort: Container[str], tls: UpstreamTls | None) -> Config:
    return {
        "@type": f"{TYPES}.config.cluster.v3.Cluster",
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": http_options(
            {"http_protocol_options": {}}, idle_timeout=f"{UPSTREAM_IDLE_S}s"
        ),
        "circuit_breakers": unlimited(),
        "outlier_detection": _outliers(),
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 30, "keepalive_interval": 10}},
        "load_balancing_policy": _policy(),
        "load_assignment": {
            "cluster_name": name,
            "endpoints": _endpoints(addresses, last_resort, tls.server_names if tls else {}),
        },
        **({"transport_socket_matches": upstream_tls.socket_matches(tls)} if tls else {}),
    }


def _endpoints(addresses: Sequence[str], last_resort: Container[str], server_names: Mapping[str, str]) -> list[Config]:
    """By priority: without the picker's word, as for a second try, Envoy goes to the first one that has a host."""
    first = [_endpoint(one, server_names.get(one, "")) for one in addresses if one not in last_resort]
    last = [_endpoint(one, server_names.get(one, "")) for one in addresses if one in last_resort]
    found = [hosts for hosts in (first, last) if hosts] or [[]]
    return [{"priority": priority, "lb_endpoints": hosts} for priority, hosts in enumerate(found)]


def _endpoint(address: str, server_name: str) -> Config:
    host, _, port = address.rpartition(":")
    plain = str(ipaddress.ip_address(host.strip("[]")))
    return {
        "endpoint": {"address": {"socket_address": {"address": plain, "port_value": int(port)}}},
        **upstream_tls.endpoint_metadata(server_name),
    }


def _outliers() -> Config:
    """Ejects only a host that cannot be connected to, for a moment. Errors that it answers go to the client."""
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "enforcing_failure_percentage": 0,
        "interval": "1s",
        "base_ejection_time": "3s",
        "max_ejection_percent": 50,
    }


def _policy() -> Config:
    """The picker's list comes first; a host outside of this cluster is skipped. Least-request is the fallback."""
    least = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {"@type": f"{TYPES}.extensions.load_balancing_policies.least_request.v3.LeastRequest"},
    }
    override = {
        "@type": f"{TYPES}.extensions.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": names.HEADER_DESTINATION}],
        "fallback_policy": {"policies": [{"typed_extension_config": least}]},
    }
    return {
        "policies": [
            {
                "typed_extension_config": {
                    "name": "envoy.load_balancing_policies.override_host",
                    "typed_config": override,
                }
            }
        ]
    }
