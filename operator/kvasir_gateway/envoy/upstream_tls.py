"""TLS from Envoy to replicas: which of a cluster's hosts speak it, and how they are verified.

Pure data. While replicas are replaced some of a service speak TLS and others do not: each host has it in its metadata.
The file of the authority has a hash of its content in its name, so that a new authority changes the clusters.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvasir_gateway.envoy.edge_tls import TLS

Config = dict[str, Any]
MATCH: Final = "envoy.transport_socket_match"
"""Of a host's metadata: which of the cluster's sockets it gets."""
SERVER_NAME: Final = "server_name"
RAW: Final = "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"


@dataclass(frozen=True)
class UpstreamTls:
    """authority_file: PEM certificates. hosts: addresses of those that speak TLS, each with the name that its
    certificate must have."""

    authority_file: str
    hosts: tuple[tuple[str, str], ...]

    @property
    def server_names(self) -> Mapping[str, str]:
        """By address."""
        return dict(self.hosts)


def of_hosts(tls: UpstreamTls | None, server_names: Mapping[str, str], addresses: Iterable[str]) -> UpstreamTls | None:
    """For these hosts alone, None where none of them speaks TLS. server_names: of tls, made once for all clusters."""
    found = tuple((address, server_names[address]) for address in addresses if address in server_names)
    return UpstreamTls(tls.authority_file, found) if tls is not None and found else None


def endpoint_metadata(server_name: str) -> Config:
    """Of a host; nothing where it speaks no TLS."""
    return {"metadata": {"filter_metadata": {MATCH: {SERVER_NAME: server_name}}}} if server_name else {}


def socket_matches(tls: UpstreamTls) -> list[Config]:
    """The sockets of a cluster, the first that matches a host's metadata counts."""
    server_names = sorted(set(tls.server_names.values()))
    raw = {"name": "envoy.transport_sockets.raw_buffer", "typed_config": {"@type": RAW}}
    return [
        *(
            {
                "name": name,
                "match": {SERVER_NAME: name},
                "transport_socket": _verified(tls.authority_file, name),
            }
            for name in server_names
        ),
        {"name": "plain", "match": {}, "transport_socket": raw},
    ]


def _verified(authority_file: str, server_name: str) -> Config:
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{TLS}.UpstreamTlsContext",
            "sni": server_name,
            "common_tls_context": {
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
                "validation_context": {
                    "trusted_ca": {"filename": authority_file},
                    "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": server_name}}],
                },
            },
        },
    }
