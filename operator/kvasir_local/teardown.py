"""Ends the processes of a cluster and removes its files. Called by `control_plane`."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvasir_local import cluster_state, component_flags, process_commands, processes
from kvasir_local.cluster_state import (
    CONTAINERD_PREFIX,
    KUBE_PROXY_PREFIX,
    KUBE_ROUTER_PREFIX,
    PROVISIONER,
    WATCHDOG,
    ClusterState,
)
from kvasir_local.kubelet import host
from kvasir_local.processes import ProcessIdentity
from kvasir_local.progress import Progress
from kvasir_local.state_paths import StatePaths

_NODE_GRACE_S: Final = 20.0
_MEMBER_GRACE_S: Final = 5.0
_STRAGGLER_GRACE_S: Final = 3.0


def end_processes(recorded: ClusterState, paths: StatePaths, progress: Progress) -> list[str]:
    """Nodes first, since they end the pods' processes; etcd after the API server; the watchdog last."""
    if recorded.boot_id != processes.boot_id():
        return []
    kubelets = [node for node in recorded.nodes if node.kubelet is not None]
    names = [item.name for item in recorded.processes]
    nodes = [name for name in names if name.startswith(cluster_state.NODE_PREFIX)]
    network = [name for name in names if name.startswith((KUBE_PROXY_PREFIX, KUBE_ROUTER_PREFIX))]
    stopped = _end([*nodes, *network, PROVISIONER], _NODE_GRACE_S, recorded, progress)
    for node in kubelets:
        host.forget_containers(process_commands.kubelet_node(node, recorded, paths))
    waves = [
        ([name for name in names if name.startswith(CONTAINERD_PREFIX)], _MEMBER_GRACE_S),
        ([component_flags.SCHEDULER, component_flags.CONTROLLER_MANAGER], _MEMBER_GRACE_S),
        ([component_flags.APISERVER], _MEMBER_GRACE_S),
        ([component_flags.ETCD], _MEMBER_GRACE_S),
        ([WATCHDOG], _MEMBER_GRACE_S),
    ]
    for wave, grace_s in waves:
        stopped += _end(wave, grace_s, recorded, progress)
    return stopped


def end_stragglers(state_dir: Path) -> list[str]:
    """Ends processes of the directory's clusters that no record names; returns their titles."""
    found = processes.marked(state_dir)
    titles = [processes.title(process) for process in found]
    processes.stop(found, grace_s=_STRAGGLER_GRACE_S)
    return titles


def _end(names: Sequence[str], grace_s: float, recorded: ClusterState, progress: Progress) -> list[str]:
    found = {name: process for name in names if (process := recorded.process(name)) is not None}
    living = {name: process for name, process in found.items() if _is_other(process) and processes.alive(process)}
    if not living:
        return []
    progress.waiting(f"stopping {', '.join(living)}…")
    killed = processes.stop(living.values(), grace_s=grace_s)
    return [f"{name} (killed)" if process in killed else name for name, process in living.items()]


def _is_other(process: ProcessIdentity) -> bool:
    """The watchdog stops a cluster of which it is itself a process."""
    return process.pid != os.getpid()


def clear(paths: StatePaths) -> None:
    """Removes what describes the cluster; logs stay, since they say why it ended."""
    for path in paths.temporary():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def put_aside(logs: Path) -> None:
    """Keeps the logs of the cluster before this one, and no older ones."""
    if logs.exists():
        previous = logs.with_name(f"{logs.name}.previous")
        shutil.rmtree(previous, ignore_errors=True)
        logs.rename(previous)
