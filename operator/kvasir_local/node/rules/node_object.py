"""The Node and its Lease as this machine presents itself to the API server."""

from dataclasses import dataclass
from typing import Any, Final

from kvasir_local.node.rules.devices import GPU, Gpus
from kvasir_local.node.rules.kinds import micro_timestamp, timestamp

HOST_IP: Final = "127.0.0.1"
LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_S: Final = 40
MAX_PODS: Final = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the machine has. disk_bytes: free where the state directory lies; architecture: amd64 or arm64."""

    cpus: int
    memory_bytes: int
    disk_bytes: int
    gpus: Gpus
    architecture: str
    kernel: str
    system: str
    machine_id: str
    boot_id: str


def allocatable(machine: Machine) -> dict[str, str]:
    """Capacity by resource name, all of it allocatable."""
    found = {
        "cpu": str(machine.cpus),
        "memory": f"{machine.memory_bytes // 1024}Ki",
        "ephemeral-storage": f"{machine.disk_bytes // 2**20}Mi",
        "pods": str(MAX_PODS),
    }
    return {**found, GPU: str(machine.gpus.count)} if machine.gpus.count else found


def node(name: str, machine: Machine) -> dict[str, Any]:
    """The Node without status."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": machine.architecture}
    beta = {"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": machine.architecture}
    return {"metadata": {"name": name, "labels": {**labels, **beta, "kvasir.dev/process-node": "true"}}}


def node_status(
    name: str,
    machine: Machine,
    *,
    host_ip: str = HOST_IP,
    version: str,
    port: int,
    ready: tuple[str, str],
    now: float,
    since: float,
) -> dict[str, Any]:
    """The status of the Node. host_ip: its address; port: of the kubelet API there.

    ready: reason and message, of which KubeletReady means Ready.
    now, since: seconds since 1970, of this heartbeat and of the last change of Ready.
    """
    resources = allocatable(machine)
    is_ready = "True" if ready[0] == "KubeletReady" else "False"
    quiet = (
        ("MemoryPressure", "KubeletHasSufficientMemory", "memory is left to the machine"),
        ("DiskPressure", "KubeletHasNoDiskPressure", "disk is left to the machine"),
        ("PIDPressure", "KubeletHasSufficientPID", "processes are left to the machine"),
    )
    conditions = [_condition(kind, "False", reason, message, now, since) for kind, reason, message in quiet]
    conditions.append(_condition("Ready", is_ready, *ready, now, since))
    return {
        "metadata": {"name": name},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": host_ip}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {
                "machineID": machine.machine_id,
                "systemUUID": machine.machine_id,
                "bootID": machine.boot_id,
                "kernelVersion": machine.kernel,
                "osImage": machine.system,
                "containerRuntimeVersion": f"kvasir-process://{version}",
                "kubeletVersion": f"v{version}",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": machine.architecture,
            },
        },
    }


def is_ready(node: dict[str, Any]) -> bool:
    """Whether the API server has the node as ready. A controller marks one whose Lease is old as unknown."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def lease(name: str, *, now: float) -> dict[str, Any]:
    """The heartbeat: a node whose lease is older than LEASE_S counts as dead."""
    return {
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": micro_timestamp(now)},
    }


def _condition(kind: str, status: str, reason: str, message: str, now: float, since: float) -> dict[str, str]:
    times = {"lastHeartbeatTime": timestamp(now), "lastTransitionTime": timestamp(since)}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}
