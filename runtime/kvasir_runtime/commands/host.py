"""What this machine offers, as far as files tell: memory, a CUDA driver, instructions for bfloat16. Without torch."""

from pathlib import Path
from typing import Literal

Device = Literal["cpu", "cuda"]


def memory_bytes(root: Path = Path("/")) -> int:
    """What can be taken: the container's limit, or what the machine has available if that is less. root: for tests."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    limits = [next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))]
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = root / name
        text = path.read_text().strip() if path.is_file() else ""
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def device(root: Path = Path("/")) -> Device:
    """cuda where NVIDIA's driver is loaded."""
    return "cuda" if (root / "dev/nvidiactl").exists() else "cpu"


def dtype(wanted: str, checkpoint: str, computed_on: Device, root: Path = Path("/")) -> str:
    """What --dtype auto comes to: the checkpoint's type, except for 16-bit types on a CPU that computes them badly."""
    if wanted != "auto":
        return wanted
    if computed_on == "cuda" or checkpoint == "float32":
        return checkpoint
    path = root / "proc/cpuinfo"
    words = set(path.read_text().split()) if path.is_file() else set()
    return "bfloat16" if words & {"avx512_bf16", "amx_bf16", "amx_tile", "bf16"} else "float32"
