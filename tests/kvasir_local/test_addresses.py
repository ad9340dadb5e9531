"""Ports and networks that nobody uses."""

import os
import socket

import pytest

from kvasir_local import addresses
from kvasir_local.errors import PortTakenError
from kvasir_local.kubelet.network import API_SERVER_PORT


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_ports_differ_and_lie_below_those_of_outgoing_connections():
    ports = addresses.free_ports(20)
    assert len(set(ports)) == 20
    assert all(20_000 <= port < 32_000 for port in ports)


def test_a_taken_port_is_refused_with_its_holder(taken):
    with pytest.raises(
        PortTakenError, match=rf"port {taken} .* wanted for kube-apiserver, is taken by pid {os.getpid()}"
    ):
        addresses.choose(apiserver=taken)


def test_a_port_of_loopback_is_free_at_a_bridge_that_is_not_there_yet(taken):
    assert addresses.choose(apiserver=taken, bridge=15).apiserver == taken


def test_the_api_server_of_a_bridge_has_the_port_that_policies_name():
    assert addresses.choose(bridge=15).apiserver == API_SERVER_PORT == 6443
    assert addresses.choose().apiserver != API_SERVER_PORT


def test_a_port_of_every_address_is_taken_at_a_bridge_too():
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTakenError, match=rf"port {port} on 198\.18\.240\.1"):
            addresses.choose(apiserver=port, bridge=15)


def test_the_requested_port_is_used():
    (port,) = addresses.free_ports(1)
    assert addresses.choose(apiserver=port).apiserver == port


def test_a_network_with_a_listener_is_not_chosen():
    first = addresses.free_pod_network(seed=1)
    with socket.create_server((f"{first}.255.254", 0)):
        assert addresses.free_pod_network(seed=1) != first


def test_a_cluster_has_an_address_of_its_own_unless_it_is_given_one():
    network = addresses.choose()
    assert network.node_address == f"{network.pod_network}.255.1"
    assert addresses.choose(node_address="127.0.0.1").node_address == "127.0.0.1"
