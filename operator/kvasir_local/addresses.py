"""Finds free loopback ports and pod networks. Called when a cluster starts; it keeps nothing.

Ports lie below Linux' range for outgoing connections (32768 and up), so that none of those takes a port between the
moment it is found free and the moment its component listens.
"""

import contextlib
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

from kvasir_local.component_flags import APISERVER, HOST, Network
from kvasir_local.errors import LocalClusterError, PortTakenError
from kvasir_local.kubelet.network import API_SERVER_PORT, BridgeNetwork

_LOWEST: Final = 20_000
_HIGHEST: Final = 32_000
_FIRST_NETWORK: Final = 16
_PORTS_EACH: Final = 50
"""Each pod network has ports of its own, so that a cluster that has the network has the ports."""
_LISTEN: Final = "0A"
_IP_FREEBIND: Final = 15
"""Of linux/in.h, which `socket` does not name: the address need not be there yet."""


def free_ports(count: int, *, seed: int | None = None, among: range = range(_LOWEST, _HIGHEST)) -> list[int]:
    """`count` different ports on 127.0.0.1 that were free a moment ago."""
    candidates = list(among)
    random.Random(seed).shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise LocalClusterError(f"only {len(found)} free ports in {among.start} to {among.stop}, {count} are needed")


def lock_file() -> Path:
    """Held from the choice until etcd listens in the pod network: only then other clusters see that the network and its
    ports are taken."""
    return Path(tempfile.gettempdir()) / f"kvasir-addresses-{os.getuid()}.lock"


def choose(*, apiserver: int | None = None, node_address: str | None = None, bridge: int | None = None) -> Network:
    """Ports and pod network for one cluster.

    apiserver: its port, refused when taken; None for a free one, at a bridge for the usual one. node_address: None for
    one that no other cluster has.
    bridge: the network of the cluster's kubelets, None with process nodes.
    """
    if bridge is not None:
        apiserver = apiserver or API_SERVER_PORT
    if apiserver is not None:
        check_free(apiserver, APISERVER, address=BridgeNetwork(index=bridge).address if bridge is not None else HOST)
    pod_network = free_pod_network()
    first = _LOWEST + (int(pod_network.removeprefix("127.")) - _FIRST_NETWORK) * _PORTS_EACH
    etcd, etcd_peer, chosen, controller_manager, scheduler = free_ports(5, among=range(first, first + _PORTS_EACH))
    return Network(
        etcd=etcd,
        etcd_peer=etcd_peer,
        apiserver=apiserver if apiserver is not None else chosen,
        controller_manager=controller_manager,
        scheduler=scheduler,
        pod_network=pod_network,
        node_address=node_address or f"{pod_network}.255.1",
        bridge=bridge,
    )


def check_free(port: int, component: str, *, address: str = HOST) -> None:
    """Raises PortTakenError, with the holder where it can be seen."""
    if is_free(port, address):
        return
    raise PortTakenError(f"port {port} on {address}, wanted for {component}, is taken by {holder_of(port)}")


def is_free(port: int, address: str = HOST) -> bool:
    """Whether a server could listen there now, or once the machine has the address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closing connections do not matter
        probe.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def holder_of(port: int) -> str:
    """`pid N (name)` of the process that listens on the port, where it can be seen."""
    inodes = {inode for _, listening, inode in _listeners() if listening == port}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for descriptor in (entry / "fd").iterdir():
                if str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]") in inodes:
                    return f"pid {entry.name} ({(entry / 'comm').read_text().strip()})"
    return "a process of another user"


def free_pod_network(*, seed: int | None = None) -> str:
    """Two octets `127.A` so that no process listens in 127.A.0.0/16 now: each node gets one /24 of it."""
    used = {address.split(".")[1] for address, _, _ in _listeners() if address.startswith("127.")}
    free = [str(second) for second in range(_FIRST_NETWORK, 255) if str(second) not in used]
    if not free:
        raise LocalClusterError("every 127.A.0.0/16 from 127.16 to 127.254 has a listener: no network for pods is left")
    return f"127.{random.Random(seed).choice(free)}"


def _listeners() -> list[tuple[str, int, str]]:
    """(address, port, socket inode) of every listening IPv4 TCP socket."""
    rows = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[3] == _LISTEN:
            address, port = columns[1].split(":")
            dotted = socket.inet_ntoa(bytes.fromhex(address)[::-1])
            rows.append((dotted, int(port, 16), columns[9]))
    return rows
