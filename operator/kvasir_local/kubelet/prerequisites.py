"""Whether a machine lets its root run a kubelet: capabilities, file systems, control groups.

Pure but for `read`. Called by `packages` before anything is built, since a container's root often lacks some of it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CAPABILITIES: Final = {
    12: ("CAP_NET_ADMIN", "links and packet filters"),
    18: ("CAP_SYS_CHROOT", "builds of images"),
    21: ("CAP_SYS_ADMIN", "mounts, namespaces and control groups"),
}
"""Bits of the kernel's numbering, and what needs each."""
CONTROLLERS: Final = ("cpu", "memory", "pids")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """effective: capabilities of this process as bits. filesystems: the text of /proc/filesystems; mounts: that of
    /proc/self/mounts; controllers: of the control groups of version 2, empty where those are not mounted."""

    effective: int
    filesystems: str
    mounts: str
    controllers: str


def read() -> MachineFacts:
    """The facts of this machine."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    return MachineFacts(
        effective=int(status["CapEff"], 16),
        filesystems=Path("/proc/filesystems").read_text(),
        mounts=Path("/proc/self/mounts").read_text(),
        controllers=unified.read_text() if unified.exists() else "",
    )


def lacking(facts: MachineFacts) -> list[str]:
    """What the machine lacks, each with what needs it; empty where a kubelet can run."""
    found = [f"{name} ({use})" for bit, (name, use) in sorted(CAPABILITIES.items()) if not facts.effective >> bit & 1]
    if "overlay" not in facts.filesystems.split():
        found.append("overlay in /proc/filesystems (images)")
    mounted = _controllers(facts)
    if absent := [name for name in CONTROLLERS if name not in mounted]:
        found.append(f"control groups for {', '.join(absent)} (limits of pods)")
    return found


def _controllers(facts: MachineFacts) -> set[str]:
    """Controllers of version 2, and of version 1 by the options of their mounts."""
    rows = [line.split() for line in facts.mounts.splitlines()]
    of_first = {option for row in rows if row[2] == "cgroup" for option in row[3].split(",")}
    return of_first | set(facts.controllers.split())
