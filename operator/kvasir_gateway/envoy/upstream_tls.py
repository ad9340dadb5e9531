"""TLS from Envoy to replicas: which of a cluster's hosts speak it, and how they are verified.

Pure data. While replicas are replaced some of a service speak TLS and others do not: each host has it in its metadata.
The file of the authority has a hash of its content in its name, so that a new authority changes the clusters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from kvasir_gateway.envoy.bootstrap import TYPES
from kvasir_gateway.proto import cluster_pb2 as pb

MATCH: Final = "envoy.transport_socket_match"
"""Of a host's metadata: which of the cluster's sockets it gets."""
SERVER_NAME: Final = "server_name"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTls:
    """Of one cluster. authority_file: PEM certificates. server_names: by the address of each host that speaks TLS, the
    name that its certificate must have."""

    authority_file: str
    server_names: Mapping[str, str]


def typed(kind: str, message: Message | None = None) -> Any:
    """A message by the name of its type, without the package of Envoy; None where it has no field."""
    value = b"" if message is None else message.SerializeToString(deterministic=True)
    return Any(type_url=f"{TYPES}.{kind}", value=value)


def endpoint_metadata(server_name: str) -> pb.Metadata | None:
    """Of a host; None where it speaks no TLS."""
    return pb.Metadata(filter_metadata={MATCH: _named(server_name)}) if server_name else None


def socket_matches(tls: UpstreamTls) -> list[pb.Cluster.TransportSocketMatch]:
    """The sockets of a cluster, the first that matches a host's metadata counts."""
    raw = typed("extensions.transport_sockets.raw_buffer.v3.RawBuffer")
    return [
        *(
            pb.Cluster.TransportSocketMatch(
                name=name, match=_named(name), transport_socket=_verified(tls.authority_file, name)
            )
            for name in sorted(set(tls.server_names.values()))
        ),
        pb.Cluster.TransportSocketMatch(
            name="plain",
            match=Struct(),
            transport_socket=pb.TransportSocket(name="envoy.transport_sockets.raw_buffer", typed_config=raw),
        ),
    ]


def _named(server_name: str) -> Struct:
    found = Struct()
    found[SERVER_NAME] = server_name
    return found


def _verified(authority_file: str, server_name: str) -> pb.TransportSocket:
    name = pb.SubjectAltNameMatcher(san_type=pb.SubjectAltNameMatcher.DNS, matcher=pb.StringMatcher(exact=server_name))
    context = pb.CommonTlsContext(
        tls_params=pb.TlsParameters(
            tls_minimum_protocol_version=pb.TlsParameters.TLSv1_2,
            tls_maximum_protocol_version=pb.TlsParameters.TLSv1_3,
        ),
        validation_context=pb.CertificateValidationContext(
            trusted_ca=pb.DataSource(filename=authority_file), match_typed_subject_alt_names=[name]
        ),
    )
    secure = pb.UpstreamTlsContext(sni=server_name, common_tls_context=context)
    return pb.TransportSocket(
        name="envoy.transport_sockets.tls",
        typed_config=typed("extensions.transport_sockets.tls.v3.UpstreamTlsContext", secure),
    )
