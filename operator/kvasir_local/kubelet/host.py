"""Makes and removes what a real node has of this machine: its network, control groups, mounts and directories.

Called by `control_plane`. Each function may be called again after one that was interrupted.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from kvasir_local import processes
from kvasir_local.errors import LocalClusterError
from kvasir_local.kubelet import claims, configs, mounts, sysctls, traces
from kvasir_local.kubelet.claims import NetworkClaim
from kvasir_local.kubelet.configs import KubeletNode
from kvasir_local.kubelet.network import MOST_CLUSTERS, MOST_NODES, ROOT, BridgeNetwork
from kvasir_local.locks import held
from kvasir_local.progress import SilentProgress

_STOP_S: Final = 10.0
_POLL_S: Final = 0.05
_ANSWER_S: Final = 60.0
_NAMESPACES: Final = Path("/run/netns")
_SYSCTLS: Final = ROOT / "sysctls.json"


def claim_network(state_dir: Path) -> BridgeNetwork:
    """Claims the first network that no other cluster has, before anything of it is made.

    Clears what an earlier boot left in its directory, and saves the sysctls that kubelets change.
    LocalClusterError when none is left.
    """
    with _alone():
        boot_id = processes.boot_id()
        taken = claims.present(ROOT, boot_id)
        for index in range(MOST_CLUSTERS):
            network = BridgeNetwork(index=index)
            if index not in taken and not _link(network.bridge).exists():
                _clear(network)
                claims.write(ROOT, index, NetworkClaim(state_dir=str(state_dir.resolve()), boot_id=boot_id))
                sysctls.save(_SYSCTLS, boot_id=boot_id)
                return network
    raise LocalClusterError(
        f"{MOST_CLUSTERS} local clusters with kubelets have all networks; stop one ({ROOT}/*/claim.json name them)"
    )


def make_bridge(network: BridgeNetwork) -> None:
    """Makes the bridge of a claimed network."""
    _delete_link(network.bridge)
    _all(network.make_bridge())


def make_node(node: KubeletNode, others: Iterable[int]) -> None:
    """Everything that the processes of a node find when they start. others: the cluster's nodes that are there."""
    with _alone():
        _remove_node(node.network, node.index)
        for name, text in configs.texts(node).items():
            path = node.directory / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_text(text)
        (node.run_dir / "logs").mkdir(parents=True, mode=0o755)
        node.store.mkdir(parents=True, exist_ok=True, mode=0o700)
        for hierarchy in _hierarchies():
            (hierarchy / node.network.cgroup(node.index).lstrip("/")).mkdir(exist_ok=True)
        _all(node.network.make_node(node.index, tuple(others)))


def forget_containers(node: KubeletNode) -> None:
    """Removes what containerd knows of pods, so that the next cluster finds images alone. Its processes are ended."""
    _end(node.network.cgroup(node.index))
    for kind in ("tasks", "containers"):
        names = _ctr(node, kind, "list", "--quiet").split()
        if names:
            _ctr(node, kind, "delete", *names)


def remove(state_dir: Path) -> None:
    """Removes the nodes and bridges of every network that clusters of this directory have claimed, and no other's.

    After the last cluster of the machine it restores the sysctls. LocalClusterError where something stays mounted.
    """
    mine = state_dir.resolve()
    if os.geteuid() != 0 or not (claims.owned(ROOT, mine) or _SYSCTLS.exists()):
        return  # no cluster with kubelets was here
    with _alone():
        for index in claims.owned(ROOT, mine):
            _clear(BridgeNetwork(index=index))
        if claims.present(ROOT, processes.boot_id()):
            return
        if mounts.is_mount(_NAMESPACES) and not any(_NAMESPACES.iterdir()):  # by `ip netns` with the first one
            mounts.unmount(_NAMESPACES)
        sysctls.restore(_SYSCTLS, boot_id=processes.boot_id())


def _clear(network: BridgeNetwork) -> None:
    """Removes everything of a network, its claim last."""
    for node in range(MOST_NODES):
        _remove_node(network, node)
    _delete_link(network.bridge)
    shutil.rmtree(ROOT / str(network.index), ignore_errors=True)


def _remove_node(network: BridgeNetwork, node: int) -> None:
    _end(network.cgroup(node))
    directory = network.run_dir(node)
    for path in mounts.below(directory):
        mounts.unmount(path)
    if left := mounts.below(directory):  # what lies there may be somebody's model
        raise LocalClusterError(f"{left[0]} cannot be unmounted, so {directory} stays; see who uses it")
    if (_NAMESPACES / network.namespace(node)).exists():
        _all([network.remove_node(node)])
    _delete_link(network.link(node))
    traces.remove(directory)
    shutil.rmtree(directory, ignore_errors=True)
    for hierarchy in _hierarchies():
        top = hierarchy / network.cgroup(node).lstrip("/")
        for group in sorted(top.rglob("*/"), reverse=True) if top.exists() else ():
            with contextlib.suppress(OSError):
                group.rmdir()
        with contextlib.suppress(OSError):
            top.rmdir()


def _alone() -> contextlib.AbstractContextManager[None]:
    """One process at a time changes networks and nodes of this machine."""
    ROOT.mkdir(parents=True, exist_ok=True, mode=0o700)
    return held(ROOT / "lock", progress=SilentProgress(), waiting="another cluster starts or stops")


def _link(name: str) -> Path:
    return Path("/sys/class/net") / name


def _delete_link(name: str) -> None:
    """Deletes a link that is there; one that leaves meanwhile with its namespace is no error."""
    if _link(name).exists():
        result = subprocess.run(["ip", "link", "delete", name], capture_output=True, text=True, check=False)
        if _link(name).exists():
            raise LocalClusterError(f"ip link delete {name} failed: {result.stderr.strip()}")


def _ctr(node: KubeletNode, *words: str) -> str:
    """What containerd's client printed; nothing where containerd does not answer: its own end follows."""
    command = [*node.ctr, *words]
    with contextlib.suppress(subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_ANSWER_S).stdout
    return ""


def _end(cgroup: str) -> None:
    """SIGKILL to every process in a control group, until there is none."""
    deadline = time.monotonic() + _STOP_S
    while (found := _members(cgroup)) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _members(cgroup: str) -> set[int]:
    found: set[int] = set()
    for hierarchy in _hierarchies():
        top = hierarchy / cgroup.lstrip("/")
        for folder, _, _ in os.walk(top):  # which skips those that go meanwhile
            with contextlib.suppress(OSError):
                found.update(int(word) for word in Path(folder, "cgroup.procs").read_text().split())
    return found - {0, os.getpid()}


def _hierarchies() -> list[Path]:
    """Where control groups are mounted: one directory for version 2, one for each controller for version 1."""
    rows = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(row[1]) for row in rows if row[2] in {"cgroup", "cgroup2"}]


def _all(commands: Sequence[Sequence[str]]) -> None:
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise LocalClusterError(f"{' '.join(command)} failed: {result.stderr.strip()}")
