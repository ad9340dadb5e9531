"""Clusters whose hosts speak TLS: each host gets its socket by its name, and nothing else changes."""

import json

from kvasir_gateway.envoy import clusters, upstream_tls
from kvasir_gateway.envoy.upstream_tls import UpstreamTls

ONE, TWO = "10.0.0.1:8000", "10.0.0.2:8000"
TLS = UpstreamTls("/shared/ca.crt", ((ONE, "a.ns.svc"), ("10.9.9.9:8000", "z.ns.svc")))


def cluster(tls=TLS):
    (found,) = json.loads(clusters.clusters_file({"ns.a": [ONE, TWO]}, tls=tls).content)["resources"]
    return found


def test_each_host_gets_the_socket_of_its_name():
    first, second = cluster()["load_assignment"]["endpoints"][0]["lb_endpoints"]
    match = first["metadata"]["filter_metadata"][upstream_tls.MATCH]
    assert "metadata" not in second
    secure, plain = cluster()["transport_socket_matches"]
    assert (secure["match"], plain["match"]) == (match, {})
    context = secure["transport_socket"]["typed_config"]
    validation = context["common_tls_context"]["validation_context"]
    assert context["sni"] == "a.ns.svc"
    assert validation["trusted_ca"] == {"filename": "/shared/ca.crt"}
    assert validation["match_typed_subject_alt_names"] == [{"san_type": "DNS", "matcher": {"exact": "a.ns.svc"}}]


def test_a_cluster_without_such_hosts_is_as_ever():
    elsewhere = UpstreamTls("/shared/ca.crt", (("10.9.9.9:8000", "z.ns.svc"),))
    assert cluster(elsewhere) == cluster(None)
    assert "transport_socket_matches" not in cluster(None)


def test_another_authority_changes_the_clusters():
    other = clusters.clusters_file({"ns.a": [ONE]}, tls=UpstreamTls("/shared/other.crt", TLS.hosts))
    assert other.version != clusters.clusters_file({"ns.a": [ONE]}, tls=TLS).version
