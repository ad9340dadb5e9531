"""The command line of every process of a cluster, by its recorded name.

Called by `control_plane`, which starts what is decided here. It reads no file and knows no process.
"""

import sys
from pathlib import Path

from kvasir_local import cluster_state, component_flags
from kvasir_local.cluster_state import ClusterState, RecordedNode
from kvasir_local.errors import LocalClusterError
from kvasir_local.kubelet import configs
from kvasir_local.kubelet.configs import KubeletNode
from kvasir_local.state_paths import StatePaths


def command_line(name: str, recorded: ClusterState, paths: StatePaths) -> list[str]:
    """The whole command line. LocalClusterError for a name that the record has nothing to start from."""
    if name in component_flags.COMPONENTS:
        return component_flags.command_line(
            name, binaries=Path(recorded.binaries), paths=paths, network=recorded.network
        )
    if name == cluster_state.WATCHDOG:
        return _watchdog(recorded, paths)
    if name == cluster_state.PROVISIONER:
        words = ["--kubeconfig", paths.config / "provisioner.kubeconfig", "--directory", paths.volumes]
        return [sys.executable, "-m", "kvasir_local.kubelet.provisioner", *map(str, words)]
    prefix, _, node_name = name.partition("/")
    node = next((node for node in recorded.nodes if node.name == node_name), None)
    if node is None:
        raise LocalClusterError(f"{name} belongs to a node that is not recorded")
    if node.kubelet is None:
        return _process_node(node, recorded, paths)
    real = kubelet_node(node, recorded, paths)
    program = {
        cluster_state.CONTAINERD_PREFIX: ["containerd", f"--config={real.directory}/containerd.toml"],
        cluster_state.KUBE_PROXY_PREFIX: [
            f"{node.kubelet}/{component_flags.KUBE_PROXY}",
            f"--config={real.directory}/kube-proxy.yaml",
        ],
        cluster_state.KUBE_ROUTER_PREFIX: [
            node.router,
            *(f"--{name}={value}" for name, value in configs.kube_router(real).items()),
        ],
        cluster_state.NODE_PREFIX: [
            f"{node.kubelet}/{component_flags.KUBELET}",
            f"--config={real.directory}/kubelet.yaml",
            f"--kubeconfig={real.directory}/kubeconfig",
            f"--root-dir={real.run_dir}/kubelet",
            f"--hostname-override={node.name}",
            f"--node-ip={real.address}",
        ],
    }[f"{prefix}/"]
    return [*real.network.inside(node.index), *program]


def kubelet_node(node: RecordedNode, recorded: ClusterState, paths: StatePaths) -> KubeletNode:
    """A recorded node as the kubelet's files need it. LocalClusterError in a cluster of process nodes."""
    network = recorded.network.kubelets
    if network is None:
        raise LocalClusterError(f"{node.name} has a kubelet, and the cluster has no network for one")
    return KubeletNode(
        name=node.name, index=node.index, network=network, directory=paths.node(node.name), store=Path(node.store)
    )


def _watchdog(recorded: ClusterState, paths: StatePaths) -> list[str]:
    owner = recorded.owner
    if owner is None:
        raise LocalClusterError("a watchdog needs an owner, and the cluster has none")
    words = ["--owner-pid", owner.pid, "--owner-start-ticks", owner.start_ticks, "--state-dir", paths.root]
    return [sys.executable, "-m", "kvasir_local.watchdog", *map(str, words)]


def _process_node(node: RecordedNode, recorded: ClusterState, paths: StatePaths) -> list[str]:
    directory = paths.node(node.name)
    words = ["--kubeconfig", directory / "kubeconfig", "--node-name", node.name, "--state-dir", directory]
    words += ["--pod-cidr", recorded.network.pod_cidr(node.index), "--host-ip", recorded.network.node_address]
    if node.fake_gpus is not None:
        words += ["--fake-gpus", node.fake_gpus]
    return [sys.executable, "-m", "kvasir_local.node", *map(str, words)]
