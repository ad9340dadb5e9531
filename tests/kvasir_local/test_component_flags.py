"""The command lines of the control plane."""

from pathlib import Path

import pytest

from kvasir_local import component_flags
from kvasir_local.component_flags import Network
from kvasir_local.state_paths import StatePaths

PATHS = StatePaths(root=Path("/state"))
NETWORK = Network(
    etcd=1, etcd_peer=2, apiserver=3, controller_manager=4, scheduler=5, pod_network="127.40", node_address="127.0.0.1"
)


def flags(component: str) -> dict[str, str]:
    program, *words = component_flags.command_line(component, binaries=Path("/bin"), paths=PATHS, network=NETWORK)
    assert program == f"/bin/{component}"
    return dict(word.removeprefix("--").split("=", 1) for word in words)


@pytest.mark.parametrize(
    ("component", "flag", "value"),
    [
        (component_flags.ETCD, "listen-client-urls", "https://127.0.0.1:1"),
        (component_flags.ETCD, "listen-peer-urls", "https://127.40.255.254:2"),
        (component_flags.ETCD, "unsafe-no-fsync", "true"),
        (component_flags.ETCD, "client-cert-auth", "true"),
        (component_flags.APISERVER, "etcd-servers", "https://127.0.0.1:1"),
        (component_flags.APISERVER, "secure-port", "3"),
        (component_flags.APISERVER, "authorization-mode", "Node,RBAC"),
        (component_flags.APISERVER, "audit-log-path", "/state/logs/audit.log"),
        (component_flags.CONTROLLER_MANAGER, "controllers", "*,-endpoints-controller,-endpointslice-controller"),
        (component_flags.CONTROLLER_MANAGER, "root-ca-file", "/state/pki/ca.crt"),
        (component_flags.CONTROLLER_MANAGER, "secure-port", "4"),
        (component_flags.SCHEDULER, "kubeconfig", "/state/config/kube-scheduler.kubeconfig"),
        (component_flags.SCHEDULER, "secure-port", "5"),
    ],
)
def test_flag_is_set(component, flag, value):
    assert flags(component)[flag] == value


@pytest.mark.parametrize("component", component_flags.COMPONENTS)
def test_members_listen_on_loopback_only(component):
    addresses = [value for name, value in flags(component).items() if name in {"bind-address", "advertise-address"}]
    urls = [value.split("//")[1] for name, value in flags(component).items() if name.endswith("urls")]
    assert addresses or urls
    assert all(address.startswith("127.") for address in [*addresses, *urls])


def test_admission_of_service_accounts_and_pod_security_stays_on():
    assert "disable-admission-plugins" not in flags(component_flags.APISERVER)


def test_each_node_has_a_network_of_its_own():
    assert [NETWORK.pod_cidr(node) for node in (0, 1)] == ["127.40.0.0/24", "127.40.1.0/24"]
