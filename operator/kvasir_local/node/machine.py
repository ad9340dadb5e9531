"""Reads what this machine has: processors, memory, disk, GPUs. Called once at the start of the node."""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from kvasir_local.node.rules.devices import Gpus
from kvasir_local.node.rules.node_object import Machine

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
NVIDIA: Final = Path("/proc/driver/nvidia/gpus")


def look(state_dir: Path, fake_gpus: int | None) -> Machine:
    """The machine; fake_gpus: report this many GPUs instead of those present."""
    uname = os.uname()
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk_bytes=shutil.disk_usage(state_dir).free,
        gpus=gpus() if fake_gpus is None else Gpus(count=fake_gpus, real=False),
        architecture=ARCHITECTURES.get(uname.machine, uname.machine),
        kernel=uname.release,
        system=_system(),
        machine_id=_first_line("/etc/machine-id"),
        boot_id=_first_line("/proc/sys/kernel/random/boot_id"),
    )


def gpus() -> Gpus:
    """The NVIDIA GPUs that are present."""
    if NVIDIA.is_dir():
        return Gpus(count=len(list(NVIDIA.iterdir())), real=True)
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Gpus(count=0, real=True)
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    return Gpus(count=sum(line.startswith("GPU ") for line in listed.splitlines()), real=True)


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
