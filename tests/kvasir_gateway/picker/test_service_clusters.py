"""Clusters of services: encoded once, and again when the service or the authority is another."""

from fakes.gateway import pod, service, table
from kvasir_gateway.envoy.clusters import cluster, encoded
from kvasir_gateway.envoy.upstream_tls import UpstreamTls
from kvasir_gateway.picker.service_clusters import ServiceClusters

PODS = [pod("a", "a1", ip="10.0.0.1"), pod("b", "b1", ip="10.0.0.2", tls=True)]
SERVICES = table([service("a"), service("b"), service("none")], PODS).services
B = "10.0.0.2:8000"


def test_a_service_has_a_cluster_with_its_pods():
    found = ServiceClusters().of(SERVICES, "/ca.crt")
    assert found == {
        "default.a": encoded(cluster("default.a", ["10.0.0.1:8000"])),
        "default.b": encoded(
            cluster("default.b", [B], tls=UpstreamTls(authority_file="/ca.crt", server_names={B: "b.default.svc"}))
        ),
        "default.none": encoded(cluster("default.none", [])),
    }


def test_a_pod_of_last_resort_is_one_in_its_cluster():
    pods = [pod("a", "one", ip="10.0.0.1"), pod("a", "two", ip="10.0.0.2", ready=False, started=True)]
    found = ServiceClusters().of(table([service("a")], pods).services, "")
    two = "10.0.0.2:8000"
    assert found["default.a"] == encoded(cluster("default.a", ["10.0.0.1:8000", two], last_resort={two}))


def test_only_what_changed_is_encoded_again():
    made = ServiceClusters()
    first = made.of(SERVICES, "")
    moved = table([service("a"), service("b")], [pod("a", "a1", ip="10.0.0.9"), PODS[1]]).services
    second = made.of(moved, "")
    assert second["default.b"] is first["default.b"]
    assert second["default.a"].version != first["default.a"].version
    assert second.keys() == {"default.a", "default.b"}
    assert made.of(moved, "/ca.crt")["default.b"].version != second["default.b"].version
