"""Starts, repairs, checks and stops one control plane, by the state file in its directory.

Used by tests (`with ControlPlane(state_dir=...) as cluster:`) and by `stack`, which adds nodes and manifests. Flags are
in `component_flags`, the diagnosis of a recorded state in `cluster_state.diagnose`.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self

from kvasir_local import (
    access,
    addresses,
    cluster_state,
    component_flags,
    credentials,
    health_checks,
    kubectl,
    locks,
    process_commands,
    processes,
    teardown,
)
from kvasir_local.cluster_state import (
    CONTAINERD_PREFIX,
    KUBE_PROXY_PREFIX,
    KUBE_ROUTER_PREFIX,
    PROVISIONER,
    WATCHDOG,
    ClusterHealth,
    ClusterState,
    Diagnosis,
    RecordedNode,
    RecordedProcess,
)
from kvasir_local.errors import ComponentFailedError, LocalClusterError, StaleStateError
from kvasir_local.health_checks import HealthCheck
from kvasir_local.kubelet import host
from kvasir_local.kubelet.configs import KubeletNode
from kvasir_local.progress import Progress, SilentProgress
from kvasir_local.state_paths import StatePaths

READY_TIMEOUT_S: Final = 90.0
LOCK_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05


class ControlPlane:
    """One control plane and its process nodes, named by its state directory.

    Any process may build one for the same directory and see, repair or stop what another has started.
    As a context manager it belongs to the calling process and is stopped even when that is killed.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        binaries: Path | None = None,
        progress: Progress | None = None,
        owner: int | None = None,
        apiserver_port: int | None = None,
        node_address: str | None = None,
        kubelets: bool = False,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        """binaries: the directory of component_flags.BINARIES, needed only to start; owner: pid with which it ends.

        apiserver_port, node_address: for a fresh start; None for what no other cluster uses. kubelets: a fresh cluster
        gets a network for real nodes.
        """
        self.paths = StatePaths(root=state_dir.absolute())
        self._binaries = binaries
        self._progress = progress if progress is not None else SilentProgress()
        self._owner = owner
        self._apiserver_port = apiserver_port
        self._node_address = node_address
        self._kubelets = kubelets
        self._ready_timeout_s = ready_timeout_s

    def __enter__(self) -> Self:
        self._owner = self._owner if self._owner is not None else os.getpid()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        return self.paths.kubeconfig

    @property
    def state(self) -> ClusterState:
        """The recorded cluster. StaleStateError when there is none."""
        found = cluster_state.read(self.paths)
        if found is None:
            raise StaleStateError(f"no cluster is recorded in {self.paths.root}; `kvasir local up` starts one")
        return found

    @property
    def kubectl(self) -> list[str]:
        """The beginning of a command line for the kubectl that belongs to this cluster."""
        return [str(Path(self.state.binaries) / component_flags.KUBECTL), f"--kubeconfig={self.kubeconfig}"]

    def diagnose(self) -> Diagnosis:
        """What the state directory holds now."""
        return _diagnosis(cluster_state.read(self.paths))

    def start(self) -> None:
        """Brings the control plane up: joins a healthy one, repairs a damaged one, else starts a fresh one.

        Raises LocalClusterError; what was started is stopped again when a fresh start fails.
        """
        with self._locked():
            diagnosis = self.diagnose()
            if diagnosis.health == ClusterHealth.HEALTHY:
                self._check()
                self._progress.done(f"the control plane in {self.paths.root} already runs")
            elif diagnosis.health == ClusterHealth.DAMAGED:
                self._repair(diagnosis.dead)
            else:
                if diagnosis.health == ClusterHealth.STALE:
                    self._progress.done(f"{self.paths.root} describes a cluster that is gone ({diagnosis.reason})")
                self._fresh()

    def start_node(self, node: RecordedNode) -> None:
        """Starts a process node, or starts it again; returns without waiting for it to be Ready."""
        with self._locked():
            recorded = self.state
            process = recorded.process(node.process_name)
            if process is not None and processes.alive(process):
                return
            kubectl.apply(self.kubectl, access.node_roles())
            credentials.write_node(self.paths, recorded.network, node.name)
            cluster_state.write(self.paths, recorded.with_node(node))
            self._spawn(node.process_name)

    def start_kubelet(self, node: RecordedNode, *, images: Callable[[KubeletNode], None]) -> None:
        """Starts a real node, or what of it died; returns without waiting for it to be Ready.

        images: called once its containerd answers, to import what pods need.
        """
        with self._locked():
            recorded = self.state
            real = process_commands.kubelet_node(node, recorded, self.paths)
            started = {item.name for item in recorded.processes}
            made = {known.index for known in recorded.nodes if CONTAINERD_PREFIX + known.name in started}
            if node.index not in made:  # it is new, or its start was interrupted
                cluster_state.write(self.paths, recorded.with_node(node))
                host.make_node(real, made)
                credentials.write_kubelet(self.paths, recorded.network, real)
            if recorded.process(PROVISIONER) is None:
                kubectl.apply(self.kubectl, access.node_roles())
                credentials.write_provisioner(self.paths, recorded.network)
                self._spawn(PROVISIONER)
            self._spawn_dead(CONTAINERD_PREFIX + node.name)
            self._await_containerd(node)
            images(real)
            self._spawn_dead(node.process_name)
            self._spawn_dead(KUBE_PROXY_PREFIX + node.name)

    def await_node(self, name: str) -> None:
        """Returns when the node is Ready. MemberFailedError when it dies, or is not in time."""
        network = self.state.network
        ask = partial(health_checks.node, name, paths=self.paths, network=network)
        self._await(cluster_state.NODE_PREFIX + name, ask, time.monotonic())

    def enforce_policies(self, node: RecordedNode) -> None:
        """Starts what enforces NetworkPolicies on a real node that is Ready, and returns when it does.

        It ends where the node is not registered yet.
        """
        with self._locked():
            real = process_commands.kubelet_node(node, self.state, self.paths)
            self._spawn_dead(KUBE_ROUTER_PREFIX + node.name)
            ask = partial(health_checks.network_policies, real)
            self._await(KUBE_ROUTER_PREFIX + node.name, ask, time.monotonic())

    def stop(self) -> list[str]:
        """Ends every process of the cluster and forgets it; logs stay. Returns what was stopped, for a person."""
        with self._locked():
            try:
                recorded = cluster_state.read(self.paths)
            except StaleStateError as error:
                self._progress.done(str(error))
                recorded = None
            stopped = teardown.end_processes(recorded, self.paths, self._progress) if recorded is not None else []
            stopped += teardown.end_stragglers(self.paths.root)
            self._forget()
            return stopped

    def health(self) -> dict[str, HealthCheck]:
        """The health of each recorded process, by name."""
        found: dict[str, HealthCheck] = {}
        recorded = self.state
        for item in recorded.processes:
            if not processes.alive(item.process):
                found[item.name] = HealthCheck(ok=False, text=f"dead (was pid {item.process.pid})")
            elif item.name in component_flags.COMPONENTS:
                found[item.name] = health_checks.component(item.name, paths=self.paths, network=recorded.network)
            elif not item.name.startswith(cluster_state.NODE_PREFIX):
                found[item.name] = HealthCheck(ok=True, text="alive")
            elif not found[component_flags.APISERVER].ok:
                found[item.name] = HealthCheck(ok=False, text="alive; its state is unknown without the API server")
            else:
                name = item.name.removeprefix(cluster_state.NODE_PREFIX)
                found[item.name] = health_checks.node(name, paths=self.paths, network=recorded.network)
        return found

    def _await_containerd(self, node: RecordedNode) -> None:
        answers = partial(health_checks.containerd, process_commands.kubelet_node(node, self.state, self.paths))
        self._await(CONTAINERD_PREFIX + node.name, answers, time.monotonic())

    def _spawn_dead(self, name: str) -> None:
        process = self.state.process(name)
        if process is None or not processes.alive(process):
            self._spawn(name)

    def _check(self) -> None:
        """A process may live and not answer: stopped, starved, out of memory."""
        started, network = time.monotonic(), self.state.network
        for name in component_flags.COMPONENTS:
            self._await(name, partial(health_checks.component, name, paths=self.paths, network=network), started)

    def _fresh(self) -> None:
        if self._binaries is None:
            raise LocalClusterError("a control plane cannot be started without its binaries")
        for line in teardown.end_stragglers(self.paths.root):
            self._progress.done(f"stopped a process left behind: {line}")
        host.remove(self.paths.root)
        with contextlib.ExitStack() as choosing:
            choosing.enter_context(self._alone(addresses.lock_file(), "another cluster starts", "starting a cluster"))
            try:
                self._begin(self._binaries, claimed=choosing.close)
            except BaseException:
                if (begun := cluster_state.read(self.paths)) is not None:
                    teardown.end_processes(begun, self.paths, self._progress)
                self._forget()
                raise

    def _begin(self, binaries: Path, *, claimed: Callable[[], None]) -> None:
        cluster_state.forget(self.paths)
        teardown.clear(self.paths)
        network = addresses.choose(
            apiserver=self._apiserver_port,
            node_address=self._node_address,
            bridge=host.claim_network(self.paths.root).index if self._kubelets else None,
        )
        teardown.put_aside(self.paths.logs)
        credentials.write_control_plane(self.paths, network)
        owner = processes.identity(self._owner) if self._owner is not None else None
        if self._owner is not None and owner is None:
            raise LocalClusterError(f"the cluster would end with process {self._owner}, which has ended")
        cluster_state.write(
            self.paths,
            ClusterState(
                schema=cluster_state.SCHEMA,
                boot_id=processes.boot_id(),
                binaries=str(binaries),
                network=network,
                owner=owner,
            ),
        )
        if network.kubelets is not None:
            host.make_bridge(network.kubelets)
        if owner is not None:
            self._spawn(WATCHDOG)
        self._bring_up(component_flags.COMPONENTS, claimed=claimed)

    def _forget(self) -> None:
        """Removes what the ended processes of the cluster had of this machine, and every file but logs."""
        host.remove(self.paths.root)
        cluster_state.forget(self.paths)
        teardown.clear(self.paths)

    def _repair(self, dead: Sequence[str]) -> None:
        recorded = self.state
        for name in dead:
            self._progress.done(f"{name} died; it is started again. The end of its log:\n{self._end_of_log(name)}")
            if name in component_flags.COMPONENTS:
                network = recorded.network
                addresses.check_free(network.of(name), name, address=network.address_of(name))
        for name in dead:
            if name not in component_flags.COMPONENTS:
                self._spawn(name)
                if name.startswith(CONTAINERD_PREFIX):  # before its kubelet, which ends where it does not answer
                    self._await_containerd(next(node for node in recorded.nodes if name.endswith(f"/{node.name}")))
        self._bring_up([name for name in component_flags.COMPONENTS if name in dead])

    def _bring_up(self, names: Sequence[str], *, claimed: Callable[[], None] = lambda: None) -> None:
        """Starts components in two waves: the controllers exit when they find no API server.

        claimed: called once etcd listens; from then on no other cluster chooses these addresses.
        """
        network = self.state.network
        started = time.monotonic()
        for wave in (component_flags.COMPONENTS[:2], component_flags.COMPONENTS[2:]):
            wanted = [name for name in wave if name in names]
            for name in wanted:
                self._spawn(name)
            for name in wanted:
                self._await(name, partial(health_checks.component, name, paths=self.paths, network=network), started)
                if name == component_flags.ETCD:
                    claimed()
        ask = partial(health_checks.defaults, paths=self.paths, network=network)
        self._await(component_flags.CONTROLLER_MANAGER, ask, started)
        self._progress.done(
            f"control plane ready after {time.monotonic() - started:.1f} s: {component_flags.server_url(network)}"
        )

    def _await(self, name: str, ask: Callable[[], HealthCheck], started: float) -> None:
        deadline = started + self._ready_timeout_s
        while True:
            process = self.state.process(name)
            if process is None or not processes.alive(process):
                raise ComponentFailedError(f"{name} died. The end of its log:\n{self._end_of_log(name)}")
            answer = ask()
            if answer.ok:
                return
            self._progress.waiting(f"waiting for {name}… {time.monotonic() - started:.0f} s")
            if time.monotonic() > deadline:
                raise ComponentFailedError(
                    f"{name} is not ready after {self._ready_timeout_s:.0f} s: {answer.text}\n"
                    f"The end of {self.paths.log(name)}:\n{self._end_of_log(name)}"
                )
            time.sleep(_POLL_S)

    def _spawn(self, name: str) -> None:
        recorded = self.state
        environment = {**os.environ, processes.STATE_DIR_VARIABLE: str(self.paths.root)}
        if name in component_flags.COMPONENTS:
            environment = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
            environment[processes.STATE_DIR_VARIABLE] = str(self.paths.root)
        process = processes.start(
            process_commands.command_line(name, recorded, self.paths), log=self.paths.log(name), environment=environment
        )
        cluster_state.write(self.paths, recorded.with_process(RecordedProcess(name=name, process=process)))

    def _end_of_log(self, name: str) -> str:
        return processes.tail(self.paths.log(name)) or f"    {self.paths.log(name)} is empty"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time per state directory."""
        if not self.paths.lock.exists() and (foreign := self.paths.occupied()):
            raise StaleStateError(
                f"{self.paths.root} holds {', '.join(foreign)}, which no local cluster put there; "
                "choose another --state-dir"
            )
        self.paths.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        where = f"the cluster in {self.paths.root}"
        with self._alone(self.paths.lock, f"another process starts or stops {where}", f"starting or stopping {where}"):
            yield

    @contextlib.contextmanager
    def _alone(self, lock: Path, waiting: str, busy: str) -> Iterator[None]:
        timeout_s = LOCK_TIMEOUT_S + self._ready_timeout_s
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locks.held(lock, progress=self._progress, waiting=waiting, timeout_s=timeout_s))
            except TimeoutError:
                raise StaleStateError(
                    f"another process has been {busy} for {timeout_s:.0f} s; see who holds {lock}"
                ) from None
            yield


def _diagnosis(recorded: ClusterState | None) -> Diagnosis:
    living = {item.process for item in recorded.processes if processes.alive(item.process)} if recorded else set()
    return cluster_state.diagnose(recorded, boot_id=processes.boot_id(), living=living)
