"""The configuration files of a real node."""

import json
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from kvasir_local.kubelet import configs, dns
from kvasir_local.kubelet.configs import KubeletNode
from kvasir_local.kubelet.network import MOST_CLUSTERS, MOST_NODES, BridgeNetwork

MOST_SOCKET_BYTES = 107


def node(index=0, cluster=0):
    return KubeletNode(
        name=f"kvasir-{index}",
        index=index,
        network=BridgeNetwork(index=cluster),
        directory=Path("/state/nodes/kvasir-0"),
        store=Path("/cache/containerd/0-0"),
    )


def test_containerd_writes_below_its_own_directories_only():
    found = tomllib.loads(configs.texts(node())["containerd.toml"])
    cri = found["plugins"]["io.containerd.grpc.v1.cri"]
    assert (found["root"], found["state"]) == ("/cache/containerd/0-0", "/var/lib/kvasir/0/0/containerd")
    assert cri["netns_mounts_under_state_dir"] is True
    assert cri["cni"]["conf_dir"] == "/state/nodes/kvasir-0/cni"


def test_pods_get_addresses_of_their_node():
    (plugin,) = json.loads(configs.texts(node(1, 2))["cni/10-kvasir.conflist"])["plugins"]
    assert plugin["ipam"]["ranges"] == [[{"subnet": BridgeNetwork(index=2).pod_cidr(1)}]]


def test_only_the_api_server_may_call_a_kubelet():
    found = json.loads(configs.texts(node())["kubelet.yaml"])
    assert found["authentication"]["anonymous"] == {"enabled": False}
    assert found["authorization"] == {"mode": "Webhook"}
    assert found["readOnlyPort"] == 0


@pytest.mark.parametrize("file", ["kubelet.yaml", "kube-proxy.yaml"])
def test_servers_listen_on_the_node_or_on_loopback(file):
    found = json.loads(configs.texts(node(3))[file])
    addresses = [value.split(":")[0] for name, value in found.items() if name.lower().endswith("address")]
    assert addresses
    assert set(addresses) <= {"198.18.0.13", "127.0.0.1"}


def test_names_are_asked_at_the_address_that_the_dns_service_has():
    real = node(0, 3)
    items = json.loads(dns.manifests(real.network))["items"]
    (service,) = [item for item in items if item["kind"] == "Service"]
    found = json.loads(configs.texts(real)["kubelet.yaml"])
    assert found["clusterDNS"] == [service["spec"]["clusterIP"]]
    assert ip_address(found["clusterDNS"][0]) in ip_network(real.network.service_cidr)


def test_the_router_enforces_policies_and_does_nothing_else():
    found = configs.kube_router(node(1, 2))
    switches = {name.removeprefix("run-"): value for name, value in found.items() if name.startswith("run-")}
    assert switches == {"firewall": "true", "router": "false", "service-proxy": "false"}
    assert found["service-cluster-ip-range"] == BridgeNetwork(index=2).service_cidr


def test_control_groups_of_two_nodes_are_apart():
    groups = {node(i, c).network.cgroup(i) for i in range(MOST_NODES) for c in range(MOST_CLUSTERS)}
    assert len(groups) == MOST_NODES * MOST_CLUSTERS


def test_paths_of_sockets_are_short_enough():
    last = node(MOST_NODES - 1, MOST_CLUSTERS - 1)
    longest = last.run_dir / "kubelet" / "plugins_registry" / f"{'x' * 40}.sock"
    assert len(str(longest)) <= MOST_SOCKET_BYTES
