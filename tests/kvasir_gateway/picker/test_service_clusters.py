"""Clusters of services: encoded once, and again when the service or the authority is another."""

import pytest

from fakes.gateway import pod, service, table
from kvasir_gateway.envoy.clusters import cluster, encoded
from kvasir_gateway.envoy.upstream_tls import UpstreamTls
from kvasir_gateway.picker.service_clusters import LEAVING_S, ServiceClusters

PODS = [pod("a", "a1", ip="10.0.0.1"), pod("b", "b1", ip="10.0.0.2", tls=True)]
SERVICES = table([service("a"), service("b"), service("none")], PODS).services
B = "10.0.0.2:8000"


def test_a_service_has_a_cluster_with_its_pods():
    found = ServiceClusters().of(SERVICES, "/ca.crt", now_s=0.0)
    assert found == {
        "default.a": encoded(cluster("default.a", ["10.0.0.1:8000"])),
        "default.b": encoded(
            cluster("default.b", [B], tls=UpstreamTls(authority_file="/ca.crt", server_names={B: "b.default.svc"}))
        ),
        "default.none": encoded(cluster("default.none", [])),
    }


def test_a_pod_of_last_resort_is_one_in_its_cluster():
    pods = [pod("a", "one", ip="10.0.0.1"), pod("a", "two", ip="10.0.0.2", ready=False, started=True)]
    found = ServiceClusters().of(table([service("a")], pods).services, "", now_s=0.0)
    two = "10.0.0.2:8000"
    assert found["default.a"] == encoded(cluster("default.a", ["10.0.0.1:8000", two], last_resort={two}))


def test_only_what_changed_is_encoded_again():
    made = ServiceClusters()
    first = made.of(SERVICES, "", now_s=0.0)
    moved = table([service("a"), service("b")], [pod("a", "a1", ip="10.0.0.9"), PODS[1]]).services
    second = made.of(moved, "", now_s=0.0)
    assert second["default.b"] is first["default.b"]
    assert second["default.a"].version != first["default.a"].version
    assert second.keys() == {"default.a", "default.b"}
    assert made.of(moved, "/ca.crt", now_s=0.0)["default.b"].version != second["default.b"].version


ONE, TWO = "10.0.0.1:8000", "10.0.0.2:8000"


def services(*ips, **fields):
    return table([service("a")], [pod("a", ip, ip=ip, **fields) for ip in ips]).services


@pytest.mark.parametrize(
    ("then", "addresses", "leaving"),
    [
        (services("10.0.0.2"), [TWO], [ONE]),
        (services(), [], [ONE]),
        (services("10.0.0.1", draining=True), [], [ONE]),
        (services("10.0.0.1", "10.0.0.2"), [ONE, TWO], []),
    ],
)
def test_an_endpoint_that_takes_no_more_requests_stays_for_those_on_their_way(then, addresses, leaving):
    made = ServiceClusters()
    made.of(services("10.0.0.1"), "", now_s=5.0)
    found = made.of(then, "", now_s=6.0)["default.a"]
    assert found == encoded(cluster("default.a", addresses, leaving=leaving))
    assert found.reachable is bool(addresses)
    assert made.settled_in_s(6.25) == (LEAVING_S - 0.25 if leaving else None)
    assert made.of(then, "", now_s=6.0 + LEAVING_S / 2)["default.a"] is found, "the time begins once"
    assert made.of(then, "", now_s=6.0 + LEAVING_S)["default.a"] == encoded(cluster("default.a", addresses))
    assert made.settled_in_s(8.0) is None


def test_an_endpoint_that_comes_back_takes_requests_again():
    made = ServiceClusters()
    first = made.of(services("10.0.0.1"), "", now_s=0.0)
    gone = made.of(services(), "", now_s=0.5)
    assert gone["default.a"].version != first["default.a"].version, "Envoy has to confirm each of them"
    assert made.of(services("10.0.0.1"), "", now_s=0.6) == first
    assert made.settled_in_s(0.6) is None
