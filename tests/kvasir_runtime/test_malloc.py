"""What glibc does in a process of its own after its parameters were set."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")

ARENAS = """
import ctypes, sys, threading
from kvasir_runtime import malloc

libc = ctypes.CDLL(None)
if sys.argv[1] == "set":
    malloc.share_arenas()
together = threading.Barrier(9)

def take():
    libc.malloc(5000)
    together.wait()

for _ in range(8):
    threading.Thread(target=take).start()
together.wait()
stdout = ctypes.c_void_p.in_dll(libc, "stdout")
libc.malloc_info(0, stdout)
libc.fflush(stdout)
"""

HELD = """
import ctypes, os, sys
from kvasir_runtime import malloc

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)
malloc.keep_freed()
statm = os.open("/proc/self/statm", os.O_RDONLY)

def resident():
    return int(os.pread(statm, 100, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")

size, count = int(sys.argv[1]), int(sys.argv[2])
# Nothing else may come to lie above the pieces: a list that grows and a file's buffer would hold the heap's end.
pieces = (ctypes.c_void_p * count)()
for at in range(count):
    pieces[at] = libc.malloc(size)
    ctypes.memset(pieces[at], 1, size)
before = resident()
for at in reversed(range(count)):
    libc.free(pieces[at])
print(before - resident())
"""


def run(program: str, *arguments: str, **environment: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=env | environment, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    ("called", "environment", "arenas"),
    [
        ("", {}, range(5, 99)),
        ("set", {}, range(1, 3)),
        ("set", {"MALLOC_ARENA_MAX": "4"}, range(4, 5)),
        ("set", {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=4"}, range(4, 5)),
    ],
    ids=["by default", "shared", "as the environment has it", "as tunables have it"],
)
def test_threads_share_arenas(called: str, environment: dict[str, str], arenas: range) -> None:
    assert run(ARENAS, called, **environment).count("<heap nr=") in arenas


@pytest.mark.parametrize(
    ("size", "count", "returned"),
    [
        pytest.param(50_000, 200, range(-1_000_000, 1_000_000), id="small pieces are kept"),
        pytest.param(50_000, 800, range(23_000_000, 41_000_000), id="no more than 16 MiB of them"),
        pytest.param(8_000_000, 1, range(7_000_000, 9_000_000), id="a large one is returned"),
    ],
)
def test_freed_memory_is_kept_up_to_a_bound(size: int, count: int, returned: range) -> None:
    assert int(run(HELD, str(size), str(count))) in returned
