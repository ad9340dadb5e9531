"""The state of one local cluster, `state.json`, and its diagnosis at the next `up`.

`diagnose` is pure; `read`, `write` and `forget` touch the file. Called by `control_plane` and `stack`.
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from kvasir_local.component_flags import Network
from kvasir_local.credentials import write_private
from kvasir_local.errors import StaleStateError
from kvasir_local.processes import ProcessIdentity
from kvasir_local.state_paths import StatePaths

SCHEMA: Final = 3
NODE_PREFIX: Final = "node/"
CONTAINERD_PREFIX: Final = "containerd/"
KUBE_PROXY_PREFIX: Final = "kube-proxy/"
KUBE_ROUTER_PREFIX: Final = "kube-router/"
"""The process that enforces NetworkPolicies on a real node."""
PROVISIONER: Final = "provisioner"
"""The process that makes the volumes of a cluster with kubelets."""
WATCHDOG: Final = "watchdog"
"""The process that stops the cluster when its owner dies; only clusters with an owner have it."""


class RecordedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the cluster. name: one of component_flags.COMPONENTS; node/NAME, and containerd/, kube-proxy/ and
    kube-router/NAME beside a kubelet; PROVISIONER, or WATCHDOG."""

    name: str
    process: ProcessIdentity


class RecordedNode(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node, so that it can be started again with the same ones.

    index: which /24 of the pod network is its own; fake_gpus: None means the GPUs that are present. kubelet: the
    directory of kubelet and kube-proxy, None for a process node; router: the file of kube-router, and store: of
    containerd's images, for a kubelet.
    """

    name: str
    index: int
    fake_gpus: int | None = None
    kubelet: str | None = None
    router: str = ""
    store: str = ""

    @property
    def process_name(self) -> str:
        return NODE_PREFIX + self.name


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What another process needs to find, diagnose, repair and stop this cluster."""

    schema: int
    boot_id: str
    binaries: str
    network: Network
    owner: ProcessIdentity | None = None
    processes: tuple[RecordedProcess, ...] = ()
    nodes: tuple[RecordedNode, ...] = ()

    def with_process(self, process: RecordedProcess) -> "ClusterState":
        """The same cluster with this process added, or in the place of the one with its name."""
        by_name = {known.name: known for known in self.processes} | {process.name: process}
        return msgspec.structs.replace(self, processes=tuple(by_name.values()))

    def with_node(self, node: RecordedNode) -> "ClusterState":
        by_name = {known.name: known for known in self.nodes} | {node.name: node}
        return msgspec.structs.replace(self, nodes=tuple(by_name.values()))

    def process(self, name: str) -> ProcessIdentity | None:
        """The recorded process of this name, dead or alive; None when there is none."""
        return next((recorded.process for recorded in self.processes if recorded.name == name), None)


class ClusterHealth(StrEnum):
    NOTHING = "nothing"
    HEALTHY = "healthy"
    DAMAGED = "damaged"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """dead: names of processes that no longer run; reason: a sentence for the terminal."""

    health: ClusterHealth
    reason: str
    dead: tuple[str, ...] = ()


def diagnose(state: ClusterState | None, *, boot_id: str, living: Collection[ProcessIdentity]) -> Diagnosis:
    """What a state directory holds.

    NOTHING: no cluster; HEALTHY: every recorded process runs; DAMAGED: some died, and a repair keeps the data;
    STALE: none runs, so the state describes a cluster that no longer exists.
    """
    if state is None:
        return Diagnosis(health=ClusterHealth.NOTHING, reason="no cluster is recorded")
    names = tuple(recorded.name for recorded in state.processes)
    if state.boot_id != boot_id:
        return Diagnosis(health=ClusterHealth.STALE, reason="the machine was rebooted since", dead=names)
    dead = tuple(recorded.name for recorded in state.processes if recorded.process not in living)
    if len(dead) == len(names):
        return Diagnosis(health=ClusterHealth.STALE, reason="none of its processes runs", dead=dead)
    if dead:
        return Diagnosis(health=ClusterHealth.DAMAGED, reason=f"no longer running: {', '.join(dead)}", dead=dead)
    return Diagnosis(health=ClusterHealth.HEALTHY, reason=f"{len(names)} processes run")


def read(paths: StatePaths) -> ClusterState | None:
    """The recorded cluster, None when there is none. StaleStateError when the file cannot be understood."""
    try:
        content = paths.state.read_bytes()
    except FileNotFoundError:
        return None
    try:
        state = msgspec.json.decode(content, type=ClusterState)
    except msgspec.DecodeError as error:
        raise StaleStateError(
            f"{paths.state} is not a record of a cluster ({error}); `kvasir local down` clears it"
        ) from error
    if state.schema != SCHEMA:
        raise StaleStateError(
            f"{paths.state} has schema {state.schema}, expected {SCHEMA}: another version of kvasir wrote it; "
            "`kvasir local down` of that version stops its cluster, of this version clears it"
        )
    return state


def write(paths: StatePaths, state: ClusterState) -> None:
    write_private(paths.state, msgspec.json.format(msgspec.json.encode(state)))


def forget(paths: StatePaths) -> None:
    with contextlib.suppress(FileNotFoundError):
        paths.state.unlink()
