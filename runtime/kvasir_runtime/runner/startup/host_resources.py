"""Cores and memory that the machine or the container grants this process, and torch's settings for them.

Called once by `build`. Reads /proc and the control groups of both versions.
"""

import contextlib
import ctypes
import mmap
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kvasir_api import names
from kvasir_runtime import malloc
from kvasir_runtime.kernels.ops import Ops

_CGROUP = Path("/sys/fs/cgroup")
_LIBRARY = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p .*\.so[^/\n]*$", re.MULTILINE)
"""A read-only part of a shared library in /proc/self/maps: from, to."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_IN_MEMORY, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61  # of an entry of /proc/self/pagemap


def num_threads(environment: Mapping[str, str] = os.environ) -> int:
    """Threads to compute with: OMP_NUM_THREADS if set, else whole cores among those granted, at least 1.

    In a container with a quota the node's core count would be too many: threads above the quota stall all others.
    """
    given = environment.get("OMP_NUM_THREADS", "").split(",")[0]
    if given.isdigit() and int(given) > 0:
        return int(given)
    return max(1, min(_physical_cores(), int(_quota_cores() + 0.5) or 1))


def memory_limit_bytes() -> int:
    """Most memory that this process may use: the container's limit, else the machine's memory."""
    return min([_meminfo("MemTotal"), *_container_limits()])


def memory_is_shared() -> bool:
    """Whether no container limits this process, so that the machine's memory is not its own."""
    return memory_limit_bytes() >= _meminfo("MemTotal")


def memory_available_bytes() -> int:
    """Memory that can still be taken without swapping, on the whole machine."""
    return _meminfo("MemAvailable")


def resident_bytes() -> int:
    """Memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def peak_resident_bytes() -> int:
    """The most that this process held, since `reset_peak` where the kernel allows that."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resident_bytes()


def reset_peak() -> None:
    """Start to measure the peak again."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def use(threads: int, ops: Ops) -> None:
    """Set the threads of the operations, and keep freed memory in the process.

    By default glibc returns every large tensor to the kernel when it is freed and takes zeroed pages for the next one,
    which costs more than the arithmetic of a small step.
    """
    ops.set_threads(threads)
    malloc.set_parameters({malloc.MMAP_THRESHOLD: 1 << 30, malloc.TRIM_THRESHOLD: 1 << 30, malloc.TOP_PAD: 64 << 20})


def return_memory() -> None:
    """Return freed memory to the kernel: `use` keeps it, which only helps during steps."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def return_library_pages() -> None:
    """Release the pages of shared libraries that loading them touched; the next use reads them from the file cache.

    With torch's CUDA build these are 220 MiB of code and tables, most of it CUDA's own, which a CPU does not use again.
    Parts in which the loader wrote addresses, or a debugger a breakpoint, stay, since the file does not have them. Must
    not be called while libraries are loaded.
    """
    with contextlib.suppress(OSError, AttributeError), Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
        libc = ctypes.CDLL(None)
        for found in _LIBRARY.finditer(Path("/proc/self/maps").read_text(errors="replace")):
            start, end = int(found[1], 16), int(found[2], 16)
            if as_in_file(os.pread(pages.fileno(), (end - start) // _PAGE * 8, start // _PAGE * 8)):
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def as_in_file(entries: bytes) -> bool:
    """Whether none of these pages was written: a written one is in memory or swapped, and not of the file."""
    flags = np.frombuffer(entries, dtype=np.uint64)
    return not (flags[flags & _OF_FILE == 0] & (_IN_MEMORY | _SWAPPED)).any()


def _physical_cores() -> int:
    """Cores among the CPUs that this process may run on; hyper-threads of one core share its units and count once."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(path.read_text().strip() if path.exists() else str(cpu))
    return len(siblings) or 1


def _container_limits() -> list[int]:
    limits = (_number(_CGROUP / "memory.max"), _number(_CGROUP / "memory" / "memory.limit_in_bytes"))
    given = os.environ.get(names.ENV_MEMORY_LIMIT, "")
    return [limit for limit in (*limits, int(given) if given.isdigit() else 0) if limit]


def _quota_cores() -> float:
    """CPU time per wall time that the control group grants; infinite cores are the machine's."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        if quota != "max":
            return int(quota) / int(period)
    group = _CGROUP / "cpu"
    quota_us, period_us = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us else float(os.cpu_count() or 1)


def _number(path: Path) -> int | None:
    """A positive number alone in a file, or None: absent, `max`, or -1."""
    try:
        value = int(path.read_text())
    except (OSError, ValueError):
        return None
    return value if value > 0 else None


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0
