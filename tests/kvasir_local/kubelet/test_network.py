"""Addresses and links of clusters with kubelets: nothing of two clusters or nodes overlaps."""

import itertools
from ipaddress import ip_address, ip_network

from kvasir_local.kubelet.network import MOST_CLUSTERS, MOST_NODES, BridgeNetwork

TESTS_ALONE = ip_network("198.18.0.0/15")
CLUSTERS = [BridgeNetwork(index=index) for index in range(MOST_CLUSTERS)]


def networks(cluster):
    nodes = ip_network(f"{cluster.address}/24", strict=False)
    return [nodes, ip_network(cluster.service_cidr), *(ip_network(cluster.pod_cidr(i)) for i in range(MOST_NODES))]


def test_no_two_networks_overlap_and_all_lie_in_the_range_for_tests():
    every = [network for cluster in CLUSTERS for network in networks(cluster)]
    assert all(network.subnet_of(TESTS_ALONE) for network in every)
    assert not [pair for pair in itertools.combinations(every, 2) if pair[0].overlaps(pair[1])]


def test_addresses_lie_where_they_belong():
    for cluster in CLUSTERS:
        nodes = ip_network(f"{cluster.address}/24", strict=False)
        found = {cluster.address, *(cluster.node_address(i) for i in range(MOST_NODES))}
        assert len(found) == MOST_NODES + 1
        assert all(ip_address(address) in nodes for address in found)
        assert ip_address(cluster.service_address) == next(ip_network(cluster.service_cidr).hosts())


def test_names_of_interfaces_fit():
    for cluster in CLUSTERS:
        links = [command[3] for i in range(MOST_NODES) for command in cluster.make_node(i, ()) if "veth" in command]
        assert len(set(links)) == MOST_NODES
        assert all(len(name) <= 15 for name in (*links, cluster.bridge))


def test_nodes_have_routes_to_the_pods_of_one_another():
    commands = [" ".join(command) for command in BridgeNetwork(index=1).make_node(2, (0,))]
    assert "ip -netns kvasir1-2 route replace 198.18.17.0/24 via 198.18.16.10" in commands
    assert "ip -netns kvasir1-0 route replace 198.18.19.0/24 via 198.18.16.12" in commands


def test_only_the_first_node_serves_cluster_addresses_to_this_machine():
    service = BridgeNetwork(index=0).service_cidr
    serving = [i for i in range(3) if any(service in command for command in BridgeNetwork(index=0).make_node(i, ()))]
    assert serving == [0]
