"""The command lines of the control plane."""

from pathlib import Path

import pytest

from kvasir_local import members
from kvasir_local.layout import Layout
from kvasir_local.members import Network

LAYOUT = Layout(root=Path("/state"))
NETWORK = Network(
    etcd=1, etcd_peer=2, apiserver=3, controller_manager=4, scheduler=5, pod_network="127.40", node_address="127.0.0.1"
)


def flags(member: str) -> dict[str, str]:
    program, *words = members.command(member, binaries=Path("/bin"), layout=LAYOUT, network=NETWORK)
    assert program == f"/bin/{member}"
    return dict(word.removeprefix("--").split("=", 1) for word in words)


@pytest.mark.parametrize(
    ("member", "flag", "value"),
    [
        (members.ETCD, "listen-client-urls", "https://127.0.0.1:1"),
        (members.ETCD, "listen-peer-urls", "https://127.40.255.254:2"),
        (members.ETCD, "unsafe-no-fsync", "true"),
        (members.ETCD, "client-cert-auth", "true"),
        (members.APISERVER, "etcd-servers", "https://127.0.0.1:1"),
        (members.APISERVER, "secure-port", "3"),
        (members.APISERVER, "authorization-mode", "Node,RBAC"),
        (members.APISERVER, "audit-log-path", "/state/logs/audit.log"),
        (members.CONTROLLER_MANAGER, "controllers", "*,-endpoints-controller,-endpointslice-controller"),
        (members.CONTROLLER_MANAGER, "root-ca-file", "/state/pki/ca.crt"),
        (members.CONTROLLER_MANAGER, "secure-port", "4"),
        (members.SCHEDULER, "kubeconfig", "/state/config/kube-scheduler.kubeconfig"),
        (members.SCHEDULER, "secure-port", "5"),
    ],
)
def test_flag_is_set(member, flag, value):
    assert flags(member)[flag] == value


@pytest.mark.parametrize("member", members.MEMBERS)
def test_members_listen_on_loopback_only(member):
    addresses = [value for name, value in flags(member).items() if name in {"bind-address", "advertise-address"}]
    urls = [value.split("//")[1] for name, value in flags(member).items() if name.endswith("urls")]
    assert addresses or urls
    assert all(address.startswith("127.") for address in [*addresses, *urls])


def test_admission_of_service_accounts_and_pod_security_stays_on():
    assert "disable-admission-plugins" not in flags(members.APISERVER)


def test_each_node_has_a_network_of_its_own():
    assert [NETWORK.pod_cidr(node) for node in (0, 1)] == ["127.40.0.0/24", "127.40.1.0/24"]
