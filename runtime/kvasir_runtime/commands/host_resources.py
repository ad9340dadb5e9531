"""Reads from files what this machine has: memory, a CUDA driver, instructions for bfloat16. Without torch."""

import os
from pathlib import Path
from typing import Literal

from kvasir_api.forecast import cuda_dtype
from kvasir_api.names import ENV_MEMORY_LIMIT

Device = Literal["cpu", "cuda"]


def memory_bytes(root: Path = Path("/")) -> int:
    """What can be taken: the container's limit, or what the machine has available if that is less. root: for tests."""
    return min([_meminfo(root, "MemAvailable"), *_container_limits(root)])


def memory_is_shared(root: Path = Path("/")) -> bool:
    """Whether no container limits what can be taken, so that the engine leaves most of it to others."""
    return not any(limit < _meminfo(root, "MemTotal") for limit in _container_limits(root))


def _meminfo(root: Path, key: str) -> int:
    lines = (root / "proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), 1 << 62)


def _container_limits(root: Path) -> list[int]:
    names = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
    texts = [(root / name).read_text().strip() for name in names if (root / name).is_file()]
    texts.append(os.environ.get(ENV_MEMORY_LIMIT, ""))
    return [int(text) for text in texts if text.isdigit()]


def device(root: Path = Path("/")) -> Device:
    """cuda where NVIDIA's driver is loaded."""
    return "cuda" if (root / "dev/nvidiactl").exists() else "cpu"


def dtype(wanted: str, checkpoint: str, computed_on: Device, root: Path = Path("/")) -> str:
    """What --dtype auto comes to: on CUDA as `forecast.cuda_dtype`; on a CPU the checkpoint's type, except for 16-bit
    types where there are no kernels of bfloat16 for it (`kernels.cpu.build.VARIANTS_OF`).
    """
    if wanted != "auto":
        return wanted
    if computed_on == "cuda":
        return cuda_dtype(checkpoint)
    if checkpoint == "float32":
        return checkpoint
    path = root / "proc/cpuinfo"
    words = set(path.read_text().split()) if path.is_file() else set()
    return "bfloat16" if words & {"avx2", "asimddp", "bf16"} else "float32"
