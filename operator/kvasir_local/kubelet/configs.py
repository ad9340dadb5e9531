"""The configuration of a node's containerd, CNI plugins, kubelet, kube-proxy and kube-router.

Pure: `host` writes the files. Tried with containerd 1.6, runc 1.1, Kubernetes v1.34 and kube-router v2.1 on cgroup v1;
what is not obvious has its reason beside it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir_local.kubelet.images import PAUSE
from kvasir_local.kubelet.network import BridgeNetwork

CNI_PLUGINS: Final = Path("/usr/lib/cni")
"""Where Debian's containernetworking-plugins puts them."""
KUBELET_PORT: Final = 10250
CLUSTER_DOMAIN: Final = "cluster.local"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletNode:
    """One node. directory: its configuration and credentials; store: containerd's images, which outlive the cluster."""

    name: str
    index: int
    network: BridgeNetwork
    directory: Path
    store: Path

    @property
    def address(self) -> str:
        return self.network.node_address(self.index)

    @property
    def run_dir(self) -> Path:
        return self.network.run_dir(self.index)

    @property
    def socket(self) -> Path:
        """Of containerd."""
        return self.run_dir / "containerd.sock"

    @property
    def ctr(self) -> list[str]:
        """The beginning of a command line of containerd's client."""
        return ["ctr", f"--address={self.socket}", "--namespace=k8s.io"]


def texts(node: KubeletNode) -> dict[str, str]:
    """Files of a node by their path below its directory."""
    return {
        "containerd.toml": _containerd(node),
        "cni/10-kvasir.conflist": _cni(node),
        "kubelet.yaml": _json(_kubelet(node)),
        "kube-proxy.yaml": _json(_kube_proxy(node)),
    }


def kube_router(node: KubeletNode) -> dict[str, str]:
    """Flags of the process that enforces NetworkPolicies, and does nothing else of what it could.

    It comes after kube-proxy has replaced a ClusterIP, so that the ports of policies are those of pods.
    """
    return {
        "kubeconfig": f"{node.directory}/kube-router.kubeconfig",
        "hostname-override": node.name,
        "service-cluster-ip-range": node.network.service_cidr,
        "run-firewall": "true",
        "run-router": "false",
        "run-service-proxy": "false",
        "enable-cni": "false",
        "health-port": "0",
    }


def _containerd(node: KubeletNode) -> str:
    unused = ("aufs", "btrfs", "devmapper", "zfs")
    disabled = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in unused)
    # restrict_oom_score_adj: where the capability to lower it is missing, runc ends without a word.
    # netns_mounts_under_state_dir: else mounts lie in a directory of the machine's own.
    return f"""\
version = 2
root = "{node.store}"
state = "{node.run_dir}/containerd"
disabled_plugins = [{disabled}]
[grpc]
address = "{node.socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{node.store}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PLUGINS}"
conf_dir = "{node.directory}/cni"
"""


def _cni(node: KubeletNode) -> str:
    """ptp routes each packet, where a bridge would let answers pass by the node's packet filter and so by Services."""
    plugin = {
        "type": "ptp",
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.network.pod_cidr(node.index)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": f"{node.run_dir}/addresses",
        },
    }
    return _json({"cniVersion": "0.4.0", "name": "kvasir", "plugins": [plugin]})


def _kubelet(node: KubeletNode) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{node.directory}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{node.directory}/serving.crt",
        "tlsPrivateKeyFile": f"{node.directory}/serving.key",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "clusterDNS": [node.network.dns_address],
        "clusterDomain": CLUSTER_DOMAIN,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.network.cgroup(node.index),  # of its own: kubelets remove what they do not know
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        # The disk is this machine's: neither its images nor its pods leave because others fill it.
        "evictionHard": {"memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "5s",
        "volumePluginDir": f"{node.run_dir}/volume-plugins",
        "podLogsDir": f"{node.run_dir}/logs",
    }


def _kube_proxy(node: KubeletNode) -> dict[str, object]:
    untouched = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": node.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": f"{node.directory}/kube-proxy.kubeconfig"},
        # Of its own pods alone: what comes from elsewhere must go back through this node.
        "clusterCIDR": node.network.pod_cidr(node.index),
        "detectLocalMode": "ClusterCIDR",
        "conntrack": untouched,  # their limits are the machine's
        "iptables": {"localhostNodePorts": False},
    }


def _json(document: dict[str, object]) -> str:
    return json.dumps(document, indent=2) + "\n"
