"""Starts, repairs, judges and stops one control plane, by the record in its state directory.

Used by tests (`with ControlPlane(state_dir=...) as cluster:`) and by `stack`, which adds nodes and manifests. Flags are
decided in `members`, what a recorded state means in `record.examine`.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self

from kvasir_local import access, addresses, credentials, kubectl, locks, members, probe, processes, record
from kvasir_local.errors import LocalClusterError, MemberFailedError, StaleStateError
from kvasir_local.layout import Layout
from kvasir_local.probe import Answer
from kvasir_local.processes import Identity
from kvasir_local.record import GUARD, Finding, Member, Node, State, Verdict
from kvasir_local.say import Quiet, Say

READY_TIMEOUT_S: Final = 90.0
LOCK_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_NODE_GRACE_S: Final = 20.0
_MEMBER_GRACE_S: Final = 5.0
_STRAGGLER_GRACE_S: Final = 3.0


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
        say: Say | None = None,
        owner: int | None = None,
        apiserver_port: int | None = None,
        node_address: str | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        """binaries: the directory that holds members.BINARIES, needed only to start; owner: pid with which it ends.

        apiserver_port, node_address: for a fresh start; None for what no other cluster uses.
        """
        self.layout = Layout(root=state_dir.absolute())
        self._binaries = binaries
        self._say = say if say is not None else Quiet()
        self._owner = owner
        self._apiserver_port = apiserver_port
        self._node_address = node_address
        self._ready_timeout_s = ready_timeout_s

    def __enter__(self) -> Self:
        self._owner = self._owner if self._owner is not None else os.getpid()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        return self.layout.kubeconfig

    @property
    def state(self) -> State:
        """The recorded cluster. StaleStateError when there is none."""
        found = record.read(self.layout)
        if found is None:
            raise StaleStateError(f"no cluster is recorded in {self.layout.root}; `kvasir local up` starts one")
        return found

    @property
    def kubectl(self) -> list[str]:
        """The beginning of a command line for the kubectl that belongs to this cluster."""
        return [str(Path(self.state.binaries) / members.KUBECTL), f"--kubeconfig={self.kubeconfig}"]

    def examine(self) -> Verdict:
        """What the state directory holds now."""
        return _verdict(record.read(self.layout))

    def start(self) -> None:
        """Brings the control plane up: joins a healthy one, repairs a damaged one, else starts a fresh one.

        Raises LocalClusterError; what was started is stopped again when a fresh start fails.
        """
        with self._locked():
            verdict = self.examine()
            if verdict.finding == Finding.HEALTHY:
                self._check()
                self._say.done(f"the control plane in {self.layout.root} already runs")
            elif verdict.finding == Finding.DAMAGED:
                self._repair(verdict.dead)
            else:
                if verdict.finding == Finding.STALE:
                    self._say.done(f"{self.layout.root} describes a cluster that is gone ({verdict.reason})")
                self._fresh()

    def start_node(self, node: Node) -> None:
        """Starts a process node, or starts it again; returns without waiting for it to be Ready."""
        with self._locked():
            recorded = self.state
            process = recorded.process(node.member)
            if process is not None and processes.alive(process):
                return
            kubectl.apply(self.kubectl, access.node_role())
            credentials.write_node(self.layout, recorded.network, node.name)
            record.write(self.layout, recorded.with_node(node))
            self._spawn(node.member)

    def await_node(self, name: str) -> None:
        """Returns when the node is Ready. MemberFailedError when it dies, or is not in time."""
        network = self.state.network
        ask = partial(probe.node, name, layout=self.layout, network=network)
        self._await(record.NODE_PREFIX + name, ask, time.monotonic())

    def stop(self) -> list[str]:
        """Ends every process of the cluster and forgets it; logs stay. Returns what was stopped, for a person."""
        with self._locked():
            try:
                recorded = record.read(self.layout)
            except StaleStateError as error:
                self._say.done(str(error))
                recorded = None
            stopped = _stop_members(recorded, self._say) if recorded is not None else []
            stopped += _stop_stragglers(self.layout.root)
            record.forget(self.layout)
            _clear(self.layout)
            return stopped

    def answers(self) -> dict[str, Answer]:
        """The health of each recorded process, by name."""
        found: dict[str, Answer] = {}
        recorded = self.state
        for member in recorded.members:
            if not processes.alive(member.process):
                found[member.name] = Answer(ok=False, text=f"dead (was pid {member.process.pid})")
            elif member.name in members.MEMBERS:
                found[member.name] = probe.member(member.name, layout=self.layout, network=recorded.network)
            elif member.name == GUARD:
                found[member.name] = Answer(ok=True, text="alive")
            elif not found[members.APISERVER].ok:
                found[member.name] = Answer(ok=False, text="alive; the API server does not tell more")
            else:
                name = member.name.removeprefix(record.NODE_PREFIX)
                found[member.name] = probe.node(name, layout=self.layout, network=recorded.network)
        return found

    def _check(self) -> None:
        """A process may live and not answer: stopped, starved, out of memory."""
        started, network = time.monotonic(), self.state.network
        for name in members.MEMBERS:
            self._await(name, partial(probe.member, name, layout=self.layout, network=network), started)

    def _fresh(self) -> None:
        if self._binaries is None:
            raise LocalClusterError("a control plane cannot be started without its binaries")
        for line in _stop_stragglers(self.layout.root):
            self._say.done(f"stopped a process left behind: {line}")
        with contextlib.ExitStack() as choosing:
            choosing.enter_context(self._alone(addresses.lock_file(), "another cluster starts", "starting a cluster"))
            self._begin(self._binaries, claimed=choosing.close)

    def _begin(self, binaries: Path, *, claimed: Callable[[], None]) -> None:
        network = addresses.choose(apiserver=self._apiserver_port, node_address=self._node_address)
        _clear(self.layout)
        _put_aside(self.layout.logs)
        credentials.write_control_plane(self.layout, network)
        owner = processes.identity(self._owner) if self._owner is not None else None
        record.write(
            self.layout,
            State(
                schema=record.SCHEMA,
                boot_id=processes.boot_id(),
                binaries=str(binaries),
                network=network,
                owner=owner,
            ),
        )
        try:
            if owner is not None:
                self._spawn(GUARD)
            self._bring_up(members.MEMBERS, claimed=claimed)
        except BaseException:
            _stop_members(self.state, self._say)
            record.forget(self.layout)
            _clear(self.layout)
            raise

    def _repair(self, dead: Sequence[str]) -> None:
        recorded = self.state
        for name in dead:
            self._say.done(f"{name} died; it is started again. Its last words:\n{self._last_words(name)}")
            if name in members.MEMBERS:
                addresses.check_free(recorded.network.of(name), name)
        for name in dead:
            if name not in members.MEMBERS:
                self._spawn(name)
        self._bring_up([name for name in members.MEMBERS if name in dead])

    def _bring_up(self, names: Sequence[str], *, claimed: Callable[[], None] = lambda: None) -> None:
        """Starts members in two waves: the controllers give up when they find no API server.

        claimed: called once etcd listens, from when on nobody else chooses these addresses.
        """
        network = self.state.network
        started = time.monotonic()
        for wave in (members.MEMBERS[:2], members.MEMBERS[2:]):
            wanted = [name for name in wave if name in names]
            for name in wanted:
                self._spawn(name)
            for name in wanted:
                self._await(name, partial(probe.member, name, layout=self.layout, network=network), started)
                if name == members.ETCD:
                    claimed()
        ask = partial(probe.defaults, layout=self.layout, network=network)
        self._await(members.CONTROLLER_MANAGER, ask, started)
        self._say.done(f"control plane ready after {time.monotonic() - started:.1f} s: {members.server_url(network)}")

    def _await(self, name: str, ask: Callable[[], Answer], started: float) -> None:
        deadline = started + self._ready_timeout_s
        while True:
            process = self.state.process(name)
            if process is None or not processes.alive(process):
                raise MemberFailedError(f"{name} died. Its last words:\n{self._last_words(name)}")
            answer = ask()
            if answer.ok:
                return
            if time.monotonic() > deadline:
                raise MemberFailedError(
                    f"{name} is not ready after {self._ready_timeout_s:.0f} s: {answer.text}\n"
                    f"The end of {self.layout.log(name)}:\n{self._last_words(name)}"
                )
            self._say.waiting(f"waiting for {name}… {time.monotonic() - started:.0f} s")
            time.sleep(_POLL_S)

    def _spawn(self, name: str) -> None:
        recorded = self.state
        environment = {**os.environ, processes.MARK: str(self.layout.root)}
        if name in members.MEMBERS:
            environment = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR") if key in os.environ}
            environment[processes.MARK] = str(self.layout.root)
        process = processes.start(
            _command(name, recorded, self.layout), log=self.layout.log(name), environment=environment
        )
        record.write(self.layout, recorded.with_member(Member(name=name, process=process)))

    def _last_words(self, name: str) -> str:
        return processes.tail(self.layout.log(name)) or f"    {self.layout.log(name)} is empty"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` at a time per state directory."""
        if not self.layout.lock.exists() and (foreign := self.layout.occupied()):
            raise StaleStateError(
                f"{self.layout.root} holds {', '.join(foreign)}, which no local cluster put there; "
                "choose another --state-dir"
            )
        self.layout.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        where = f"the cluster in {self.layout.root}"
        with self._alone(self.layout.lock, f"another process starts or stops {where}", f"starting or stopping {where}"):
            yield

    @contextlib.contextmanager
    def _alone(self, lock: Path, waiting: str, busy: str) -> Iterator[None]:
        timeout_s = LOCK_TIMEOUT_S + self._ready_timeout_s
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locks.held(lock, say=self._say, waiting=waiting, timeout_s=timeout_s))
            except TimeoutError:
                raise StaleStateError(
                    f"another process has been {busy} for {timeout_s:.0f} s; see who holds {lock}"
                ) from None
            yield


def _command(name: str, recorded: State, layout: Layout) -> list[str]:
    if name in members.MEMBERS:
        return members.command(name, binaries=Path(recorded.binaries), layout=layout, network=recorded.network)
    if name == GUARD:
        owner = recorded.owner
        if owner is None:
            raise LocalClusterError("a guard was asked for, but the cluster has no owner")
        words = ["--owner-pid", owner.pid, "--owner-start-ticks", owner.start_ticks, "--state-dir", layout.root]
        return [sys.executable, "-m", "kvasir_local.guard", *map(str, words)]
    node = next(node for node in recorded.nodes if node.member == name)
    directory = layout.node(node.name)
    words = ["--kubeconfig", directory / "kubeconfig", "--node-name", node.name, "--state-dir", directory]
    words += ["--pod-cidr", recorded.network.pod_cidr(node.index), "--host-ip", recorded.network.node_address]
    if node.fake_gpus is not None:
        words += ["--fake-gpus", node.fake_gpus]
    return [sys.executable, "-m", "kvasir_local.node", *map(str, words)]


def _verdict(recorded: State | None) -> Verdict:
    living = {member.process for member in recorded.members if processes.alive(member.process)} if recorded else set()
    return record.examine(recorded, boot_id=processes.boot_id(), living=living)


def _stop_members(recorded: State, say: Say) -> list[str]:
    """Nodes first, since they end the pods' processes; etcd after the API server; the guard last."""
    if recorded.boot_id != processes.boot_id():
        return []
    nodes = [member.name for member in recorded.members if member.name.startswith(record.NODE_PREFIX)]
    waves = [
        (nodes, _NODE_GRACE_S),
        ([members.SCHEDULER, members.CONTROLLER_MANAGER], _MEMBER_GRACE_S),
        ([members.APISERVER], _MEMBER_GRACE_S),
        ([members.ETCD], _MEMBER_GRACE_S),
        ([GUARD], _MEMBER_GRACE_S),
    ]
    stopped = []
    for names, grace_s in waves:
        found = {name: process for name in names if (process := recorded.process(name)) is not None}
        living = {name: process for name, process in found.items() if _is_other(process) and processes.alive(process)}
        if living:
            say.waiting(f"stopping {', '.join(living)}…")
            killed = processes.stop(living.values(), grace_s=grace_s)
            stopped += [f"{name} (killed)" if process in killed else name for name, process in living.items()]
    return stopped


def _stop_stragglers(state_dir: Path) -> list[str]:
    found = processes.marked(state_dir)
    titles = [processes.title(process) for process in found]
    processes.stop(found, grace_s=_STRAGGLER_GRACE_S)
    return titles


def _is_other(process: Identity) -> bool:
    """The guard stops a cluster of which it is itself a member."""
    return process.pid != os.getpid()


def _clear(layout: Layout) -> None:
    """Removes what describes the cluster; logs stay for whoever wants to know why it ended."""
    for path in layout.temporary():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _put_aside(logs: Path) -> None:
    """Keeps the logs of the cluster before this one, and no older ones."""
    if logs.exists():
        previous = logs.with_name(f"{logs.name}.previous")
        shutil.rmtree(previous, ignore_errors=True)
        logs.rename(previous)
