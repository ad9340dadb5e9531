"""The clusters that Envoy may route to, one per service, as a discovery response in a file.

Pure data. Endpoints are part of their cluster: everything changes in one rename, and Envoy keeps one watch (it opens an
inotify instance per watched file, of which a user has 128). Envoy leaves a cluster that did not change as it is.
"""

import hashlib
import ipaddress
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kvasir_api import names
from kvasir_gateway.envoy.bootstrap import TYPES, http_options, unlimited

Config = dict[str, Any]
UPSTREAM_IDLE_S = 4
"""Idle connections are closed before the pod does it (uvicorn: 5 s), so that none is used while it closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClustersFile:
    """Content of the clusters file. version: a hash of it, which Envoy reports once it has accepted the content."""

    version: str
    content: bytes
    clusters: frozenset[str]


def clusters_file(addresses: Mapping[str, Iterable[str]], *, last_resort: Container[str] = frozenset()) -> ClustersFile:
    """Clusters by name with the addresses that may be used; Envoy never falls back to others, which are absent.

    last_resort: of these, those that Envoy may use only where the picker names them, while there are others.
    """
    clusters = [_cluster(name, found, last_resort) for name, found in sorted(addresses.items())]
    version = hashlib.sha256(msgspec.json.encode(clusters)).hexdigest()[:16]
    content = msgspec.json.encode({"version_info": version, "resources": clusters})
    return ClustersFile(version=version, content=content, clusters=frozenset(addresses))


def _cluster(name: str, addresses: Iterable[str], last_resort: Container[str]) -> Config:
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
        "load_assignment": {"cluster_name": name, "endpoints": _endpoints(tuple(addresses), last_resort)},
    }


def _endpoints(addresses: Sequence[str], last_resort: Container[str]) -> list[Config]:
    """By priority: without the picker's word, as for a second try, Envoy goes to the first one that has a host."""
    first = [_endpoint(address) for address in addresses if address not in last_resort]
    last = [_endpoint(address) for address in addresses if address in last_resort]
    found = [hosts for hosts in (first, last) if hosts] or [[]]
    return [{"priority": priority, "lb_endpoints": hosts} for priority, hosts in enumerate(found)]


def _endpoint(address: str) -> Config:
    host, _, port = address.rpartition(":")
    plain = str(ipaddress.ip_address(host.strip("[]")))
    return {"endpoint": {"address": {"socket_address": {"address": plain, "port_value": int(port)}}}}


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
