"""Addresses of a cluster with kubelets, and the `ip` commands that make and remove its links.

Pure: `host` runs the commands. Everything lies in 198.18.0.0/15, which RFC 2544 keeps for tests, so that no network of
the machine is hidden; 16 clusters of 14 nodes have room. A node is a network namespace at a bridge, and its pods are
routed: packet filters and forwarding are those of the namespace, and leave with it. There is no way out of the bridge.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_CLUSTERS: Final = 16
MOST_NODES: Final = 14
API_SERVER_PORT: Final = 6443
"""At the bridge of each cluster, as everywhere: NetworkPolicies name it."""
ROOT: Final = Path("/var/lib/kvasir")
"""Sockets, volumes and mounts of nodes lie here: a socket's path has 107 bytes at most, and a state directory
may be deep."""

_STEP: Final = 16
_FIRST_HOST: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeNetwork:
    """The network of the cluster with this index, 0 to 15; nodes are counted from 0 to 13."""

    index: int

    @property
    def bridge(self) -> str:
        """The interface of this machine to which every node is linked."""
        return f"kvasir{self.index}"

    @property
    def address(self) -> str:
        """Of the bridge: where the API server listens."""
        return f"198.18.{self.index * _STEP}.1"

    @property
    def service_cidr(self) -> str:
        return f"198.19.{self.index * _STEP}.0/20"

    @property
    def service_address(self) -> str:
        """The ClusterIP of default/kubernetes: the first of service_cidr."""
        return f"198.19.{self.index * _STEP}.1"

    @property
    def dns_address(self) -> str:
        """The ClusterIP of the cluster's DNS."""
        return f"198.19.{self.index * _STEP}.10"

    def node_address(self, node: int) -> str:
        return f"198.18.{self.index * _STEP}.{_FIRST_HOST + node}"

    def pod_cidr(self, node: int) -> str:
        return f"198.18.{self.index * _STEP + 1 + node}.0/24"

    def namespace(self, node: int) -> str:
        """The name of a node's network namespace."""
        return f"kvasir{self.index}-{node}"

    def link(self, node: int) -> str:
        """The end of a node's link that is at the bridge."""
        return f"kv{self.index}n{node}"

    def cgroup(self, node: int) -> str:
        """The control group of every container of a node."""
        return f"/kvasir{self.index}-{node}"

    def run_dir(self, node: int) -> Path:
        return ROOT / str(self.index) / str(node)

    def inside(self, node: int) -> list[str]:
        """The beginning of a command line that runs in a node's network namespace."""
        return ["/usr/bin/nsenter", f"--net=/run/netns/{self.namespace(node)}", "--"]

    def make_bridge(self) -> list[list[str]]:
        """Commands that make the bridge."""
        return [
            ["ip", "link", "add", self.bridge, "type", "bridge"],
            ["ip", "address", "add", f"{self.address}/24", "dev", self.bridge],
            ["ip", "link", "set", self.bridge, "up"],
        ]

    def make_node(self, node: int, others: tuple[int, ...]) -> list[list[str]]:
        """Commands that make a node's namespace, its link and the routes to pods; others: the nodes that are there."""
        name, link, address = self.namespace(node), self.link(node), self.node_address(node)
        here = ["ip", "-netns", name]
        commands = [
            ["ip", "netns", "add", name],
            ["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name],
            ["ip", "link", "set", link, "master", self.bridge, "up"],
            [*here, "link", "set", "lo", "up"],
            [*here, "address", "add", f"{address}/24", "dev", "eth0"],
            [*here, "link", "set", "eth0", "up"],
            [*self.inside(node), "/bin/sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"],
            ["ip", "route", "replace", self.pod_cidr(node), "via", address],
        ]
        if node == 0:  # its kube-proxy serves this machine too
            commands.append(["ip", "route", "replace", self.service_cidr, "via", address])
        for other in others:
            there = ["ip", "-netns", self.namespace(other)]
            commands.append([*here, "route", "replace", self.pod_cidr(other), "via", self.node_address(other)])
            commands.append([*there, "route", "replace", self.pod_cidr(node), "via", address])
        return commands

    def remove_node(self, node: int) -> list[str]:
        return ["ip", "netns", "delete", self.namespace(node)]
