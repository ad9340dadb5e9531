"""How glibc gives memory to the processes of a replica.

Called by each process before its first thread. Without glibc nothing happens, and what its environment variables set
stays.
"""

import contextlib
import ctypes
import os
from collections.abc import Mapping
from typing import Final

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # <malloc.h>
ARENAS: Final = 2
_VARIABLES: Final = {
    TRIM_THRESHOLD: ("MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold"),
    TOP_PAD: ("MALLOC_TOP_PAD_", "glibc.malloc.top_pad"),
    MMAP_THRESHOLD: ("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold"),
    ARENA_MAX: ("MALLOC_ARENA_MAX", "glibc.malloc.arena_max"),
}
"""A variable of its own, and the name in GLIBC_TUNABLES."""


def share_arenas() -> None:
    """Let all threads take memory from two arenas.

    By default each thread has one, up to eight for each core, and none uses what is free in another: the thread that
    receives messages held the most that ever came at once, and returned it to the kernel and took it again with each.
    """
    set_parameters({ARENA_MAX: ARENAS})


def keep_freed() -> None:
    """Keep up to 16 MiB of freed memory, and take what is larger than 4 MiB, such as bodies, from the kernel by itself.

    By default the heap is cut when 128 KiB at its end are free, which with many streams is each step.
    """
    set_parameters({MMAP_THRESHOLD: 4 << 20, TRIM_THRESHOLD: 16 << 20, TOP_PAD: 1 << 20})


def set_parameters(values: Mapping[int, int]) -> None:
    """Set those of mallopt(3) that the environment does not."""
    tunables = os.environ.get("GLIBC_TUNABLES", "").split(":")
    given = {*os.environ, *(one.partition("=")[0] for one in tunables)}
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in values.items():
            if given.isdisjoint(_VARIABLES[parameter]):
                libc.mallopt(parameter, value)
