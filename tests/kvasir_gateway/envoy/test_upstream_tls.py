"""Clusters whose hosts speak TLS: each host gets its socket by its name, and nothing else changes."""

from google.protobuf import json_format

from kvasir_gateway.envoy import clusters, upstream_tls
from kvasir_gateway.envoy.upstream_tls import UpstreamTls
from kvasir_gateway.proto import cluster_pb2

ONE, TWO = "10.0.0.1:8000", "10.0.0.2:8000"
TLS = UpstreamTls(authority_file="/shared/ca.crt", server_names={ONE: "a.ns.svc"})


def cluster(tls=TLS):
    return clusters.cluster("ns.a", [ONE, TWO], tls=tls)


def test_each_host_gets_the_socket_of_its_name():
    first, second = cluster().load_assignment.endpoints[0].lb_endpoints
    match = first.metadata.filter_metadata[upstream_tls.MATCH]
    assert not second.HasField("metadata")
    secure, plain = cluster().transport_socket_matches
    assert dict(match) == {upstream_tls.SERVER_NAME: "a.ns.svc"}
    assert (secure.match, dict(plain.match)) == (match, {})
    assert plain.HasField("match")
    context = cluster_pb2.UpstreamTlsContext.FromString(secure.transport_socket.typed_config.value)
    assert json_format.MessageToDict(context, preserving_proto_field_name=True) == {
        "sni": "a.ns.svc",
        "common_tls_context": {
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
            "validation_context": {
                "trusted_ca": {"filename": "/shared/ca.crt"},
                "match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": "a.ns.svc"}}],
            },
        },
    }


def test_a_cluster_without_such_hosts_has_no_sockets_of_its_own():
    assert not cluster(None).transport_socket_matches


def test_another_authority_changes_the_clusters():
    other = cluster(UpstreamTls(authority_file="/shared/other.crt", server_names=TLS.server_names))
    assert clusters.encoded(other).version != clusters.encoded(cluster()).version


def test_a_pod_has_time_for_a_handshake():
    """Its event loop answers it, of a connection alone its kernel."""
    assert (cluster().connect_timeout.ToSeconds(), cluster(None).connect_timeout.ToSeconds()) == (5, 1)
