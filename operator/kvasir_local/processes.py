"""Starts, recognises and ends processes. A process is named by (boot, pid, start tick), so a re-used pid is no match.

Called by `control_plane`, `watchdog` and `stack`. It decides nothing about which process should live.
"""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

STATE_DIR_VARIABLE: Final = "KVASIR_LOCAL_STATE_DIR"
"""Set in the environment of every process that belongs to a local cluster, pods' containers included; its value is the
absolute state directory. `down` finds by it whatever its parent left behind."""

_KILL_WAIT_S: Final = 5.0


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process, for as long as it lives. start_ticks: clock ticks between the boot and its start."""

    pid: int
    start_ticks: int


def boot_id() -> str:
    """Changes with every boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identity(pid: int) -> ProcessIdentity | None:
    """The process of this pid. None: there is none, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before may hold blanks and brackets
    if fields[0] in "ZX":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return None
    return ProcessIdentity(pid=pid, start_ticks=int(fields[19]))


def alive(process: ProcessIdentity) -> bool:
    return identity(process.pid) == process


def start(command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> ProcessIdentity:
    """Starts a process in a session of its own, so that Ctrl-C in the caller's terminal does not reach it.

    Its output is appended to `log`, its input is empty, no other descriptor is inherited.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.fspath(log), flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(command[0], list(command), dict(environment), file_actions=actions, setsid=True)
    found = identity(pid)
    # Dead already: a start tick that no process has marks it as dead.
    return found if found is not None else ProcessIdentity(pid=pid, start_ticks=-1)


def stop(processes: Iterable[ProcessIdentity], *, grace_s: float) -> list[ProcessIdentity]:
    """SIGTERM, then SIGKILL after `grace_s`; returns once all are gone, with those that had to be killed."""
    targets = [(process, descriptor) for process in processes if (descriptor := _open(process)) is not None]
    try:
        for _, descriptor in targets:
            _send(descriptor, signal.SIGTERM)
        stubborn = _wait(targets, grace_s)
        for _, descriptor in stubborn:
            _send(descriptor, signal.SIGKILL)
        _wait(stubborn, _KILL_WAIT_S)
        return [process for process, _ in stubborn]
    finally:
        for process, descriptor in targets:
            os.close(descriptor)
            identity(process.pid)  # reaps it when it was our child


def marked(state_dir: Path) -> list[ProcessIdentity]:
    """Every living process that carries MARK with this state directory, but the calling one."""
    wanted = f"{STATE_DIR_VARIABLE}={state_dir}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # gone meanwhile, or another user's
            continue
        if wanted in environment.split(b"\0") and (process := identity(int(entry.name))) is not None:
            found.append(process)
    return found


def title(process: ProcessIdentity) -> str:
    """The command line, shortened, for a message."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"pid {process.pid}"
    text = " ".join(word.decode(errors="replace") for word in words if word)
    return f"pid {process.pid}: {text[:80]}"


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, indented; empty when there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(f"    {line[:300]}" for line in text.splitlines()[-lines:])


def _open(process: ProcessIdentity) -> int | None:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if alive(process):  # asked after opening: the descriptor stays with this process
        return descriptor
    os.close(descriptor)
    return None


def _send(descriptor: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)


def _wait(targets: list[tuple[ProcessIdentity, int]], timeout_s: float) -> list[tuple[ProcessIdentity, int]]:
    """Those that still live after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    waiting = {descriptor: process for process, descriptor in targets}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            waiting.pop(descriptor, None)
    return [(process, descriptor) for descriptor, process in waiting.items()]
