"""The flags of etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

Pure: called by `control_plane`, which starts what is decided here. It knows paths and ports, no process.
Flags were tried with Kubernetes v1.34 and etcd v3.6; each that is not obvious says why it is there.
"""

from pathlib import Path
from typing import Final

import msgspec

from kvasir_local.kubelet.network import BridgeNetwork
from kvasir_local.state_paths import StatePaths

HOST: Final = "127.0.0.1"
SERVICE_CIDR: Final = "10.0.0.0/20"
"""Room for some 4,000 Services: each InferenceService has one, and the benchmark of the operator makes hundreds."""
SERVICE_ADDRESS: Final = "10.0.0.1"
"""The ClusterIP that the API server gives the Service default/kubernetes: the first of SERVICE_CIDR."""

ETCD: Final = "etcd"
APISERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"
KUBECTL: Final = "kubectl"
KUBELET: Final = "kubelet"
KUBE_PROXY: Final = "kube-proxy"
COREDNS: Final = "coredns"
KUBE_ROUTER: Final = "kube-router"
COMPONENTS: Final = (ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER)
"""In the order of their start; they stop in the opposite order."""
BINARIES: Final = (*COMPONENTS, KUBECTL)
NODE_BINARIES: Final = (KUBELET, KUBE_PROXY)
"""What a real node needs of Kubernetes; process nodes need nothing."""

# Endpoints in 127.0.0.0/8 are refused by the API server's validation, and each refusal is a warning event; a process
# node's pod addresses lie there. Readers of endpoints watch pods instead.
DISABLED_CONTROLLERS: Final = ("endpoints-controller", "endpointslice-controller")


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """TCP ports of the components on loopback, and the addresses of the pods.

    pod_network: the first two octets, "127.A"; each node gets one /24 of that /16.
    node_address: of every node, and so of pods in the host's network: the gateway. bridge: which network of kubelets is
    the cluster's, None with process nodes.
    """

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int
    pod_network: str
    node_address: str
    bridge: int | None = None

    @property
    def kubelets(self) -> BridgeNetwork | None:
        """The network of the kubelets; None for a cluster of process nodes."""
        return BridgeNetwork(index=self.bridge) if self.bridge is not None else None

    @property
    def server_address(self) -> str:
        """Where the API server listens: real pods reach only the bridge."""
        return self.kubelets.address if self.kubelets is not None else HOST

    def address_of(self, component: str) -> str:
        """Where `component` listens."""
        return self.server_address if component == APISERVER else HOST

    @property
    def service_address(self) -> str:
        """The ClusterIP of the API server's own Service."""
        return self.kubelets.service_address if self.kubelets is not None else SERVICE_ADDRESS

    @property
    def claim(self) -> str:
        """Where etcd's peer port listens. A single component never uses that port; it marks the pod network as taken,
        for another cluster that looks for a network without listeners."""
        return f"{self.pod_network}.255.254"

    def pod_cidr(self, node: int) -> str:
        """The addresses of the pods on the node with this index, 0 to 254."""
        return f"{self.pod_network}.{node}.0/24"

    def of(self, component: str) -> int:
        """The port on which `component` answers its health check."""
        by_component = {
            ETCD: self.etcd,
            APISERVER: self.apiserver,
            CONTROLLER_MANAGER: self.controller_manager,
            SCHEDULER: self.scheduler,
        }
        return by_component[component]


def server_url(network: Network) -> str:
    """The address of the API server as clients write it."""
    return f"https://{network.server_address}:{network.apiserver}"


def command_line(component: str, *, binaries: Path, paths: StatePaths, network: Network) -> list[str]:
    """The whole command line of one component. KeyError for a name that is not in COMPONENTS."""
    flags = {
        ETCD: _etcd,
        APISERVER: _apiserver,
        CONTROLLER_MANAGER: _controller_manager,
        SCHEDULER: _scheduler,
    }[component](paths, network)
    return [str(binaries / component), *(f"--{name}={value}" for name, value in flags.items())]


def _etcd(paths: StatePaths, network: Network) -> dict[str, object]:
    client, peer = f"https://{HOST}:{network.etcd}", f"https://{network.claim}:{network.etcd_peer}"
    pki = paths.pki
    return {
        "name": "default",
        "data-dir": paths.etcd,
        "unsafe-no-fsync": "true",  # the cluster is thrown away after a crash of the machine
        # A kind in which nothing happens sends no bookmark without it, and its watchers take the stream for dead.
        "watch-progress-notify-interval": "5s",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        # Its own authority: a node's certificate must not open the database behind the API server's back.
        "client-cert-auth": "true",
        "trusted-ca-file": pki / "etcd-ca.crt",
        "cert-file": pki / "etcd.crt",
        "key-file": pki / "etcd.key",
        "peer-client-cert-auth": "true",
        "peer-trusted-ca-file": pki / "etcd-ca.crt",
        "peer-cert-file": pki / "etcd.crt",
        "peer-key-file": pki / "etcd.key",
    }


def _apiserver(paths: StatePaths, network: Network) -> dict[str, object]:
    pki, config = paths.pki, paths.config
    bridge = network.kubelets
    return {
        "bind-address": network.server_address,
        # Else it looks for a default route, which a machine offline has not.
        "advertise-address": network.server_address,
        "secure-port": network.apiserver,
        "cert-dir": pki,
        "tls-cert-file": pki / "serving.crt",
        "tls-private-key-file": pki / "serving.key",
        "client-ca-file": pki / "ca.crt",
        "token-auth-file": config / "tokens.csv",
        "etcd-servers": f"https://{HOST}:{network.etcd}",
        "etcd-cafile": pki / "etcd-ca.crt",
        "etcd-certfile": pki / "etcd.crt",
        "etcd-keyfile": pki / "etcd.key",
        "service-cluster-ip-range": bridge.service_cidr if bridge is not None else SERVICE_CIDR,
        "authorization-mode": "Node,RBAC",
        "allow-privileged": "true",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": pki / "service-account.pub",
        "service-account-signing-key-file": pki / "service-account.key",
        "endpoint-reconciler-type": "lease" if bridge is not None else "none",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "audit-policy-file": config / "audit-policy.yaml",
        "audit-log-path": paths.audit_log,
        "audit-log-mode": "blocking",  # a test that saw its answer finds the line
        "audit-log-maxsize": 200,
        "audit-log-maxbackup": 2,
        "profiling": "false",
    }


def _controller_manager(paths: StatePaths, network: Network) -> dict[str, object]:
    pki = paths.pki
    disabled = DISABLED_CONTROLLERS if network.kubelets is None else ()
    return {
        "bind-address": HOST,
        "secure-port": network.controller_manager,
        "tls-cert-file": pki / "serving.crt",
        "tls-private-key-file": pki / "serving.key",
        "kubeconfig": paths.config / f"{CONTROLLER_MANAGER}.kubeconfig",
        "service-account-private-key-file": pki / "service-account.key",
        "root-ca-file": pki / "ca.crt",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "kube-api-qps": 200,  # the default of 20 makes its own start wait for itself
        "kube-api-burst": 400,
        "controllers": ",".join(["*", *(f"-{name}" for name in disabled)]),
        "profiling": "false",
    }


def _scheduler(paths: StatePaths, network: Network) -> dict[str, object]:
    pki = paths.pki
    return {
        "bind-address": HOST,
        "secure-port": network.scheduler,
        "tls-cert-file": pki / "serving.crt",
        "tls-private-key-file": pki / "serving.key",
        "kubeconfig": paths.config / f"{SCHEDULER}.kubeconfig",
        "leader-elect": "false",
        "profiling": "false",
    }
