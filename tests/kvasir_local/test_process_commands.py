"""The command line of each recorded process."""

from pathlib import Path

import msgspec
import pytest

from kvasir_local import cluster_state, process_commands
from kvasir_local.cluster_state import ClusterState, RecordedNode
from kvasir_local.component_flags import Network
from kvasir_local.errors import LocalClusterError
from kvasir_local.state_paths import StatePaths

PATHS = StatePaths(root=Path("/state"))
NETWORK = Network(
    etcd=1, etcd_peer=2, apiserver=3, controller_manager=4, scheduler=5, pod_network="127.40", node_address="127.0.0.1"
)
STATE = ClusterState(
    schema=cluster_state.SCHEMA,
    boot_id="boot",
    binaries="/bin",
    network=NETWORK,
    nodes=(
        RecordedNode(name="a", index=0, fake_gpus=2),
        RecordedNode(name="b", index=1, kubelet="/k", router="/r/kube-router", store="/s"),
    ),
)
REAL = msgspec.structs.replace(STATE, network=msgspec.structs.replace(NETWORK, bridge=0))


def test_a_process_node_is_a_process_of_ours():
    words = process_commands.command_line("node/a", STATE, PATHS)
    assert words[1:3] == ["-m", "kvasir_local.node"]
    assert words[-2:] == ["--fake-gpus", "2"]


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("containerd/b", "containerd"),
        ("node/b", "/k/kubelet"),
        ("kube-proxy/b", "/k/kube-proxy"),
        ("kube-router/b", "/r/kube-router"),
    ],
)
def test_processes_of_a_real_node_run_in_its_network(name, program):
    words = process_commands.command_line(name, REAL, PATHS)
    assert words[:4] == ["/usr/bin/nsenter", "--net=/run/netns/kvasir0-1", "--", program]


@pytest.mark.parametrize(
    ("name", "state", "why"),
    [
        ("node/c", STATE, "not recorded"),
        ("node/b", STATE, "no network"),
        (cluster_state.WATCHDOG, STATE, "needs an owner"),
    ],
)
def test_what_nothing_is_recorded_of_is_refused(name, state, why):
    with pytest.raises(LocalClusterError, match=why):
        process_commands.command_line(name, state, PATHS)
