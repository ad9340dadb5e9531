"""A library of its own with what only tests and benchmarks call: probes of the thread pool, ceilings, sizes of structs.

It is made from `cpp/` beside this file and from the pool of the CPU kernels, so it has threads of its own.
"""

import ctypes
import functools
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Final

from kvasir_runtime.kernels.cpu import build
from kvasir_runtime.kernels.cpu.library import Library

SOURCES: Final = Path(__file__).parent / "cpp"
LIBRARY: Final = SOURCES / f"libprobes-{platform.machine()}.so"
"""Tests of another machine run in the same folder."""
KERNELS: Final = ("*.h", "pool.cpp", "cpu.cpp")


@functools.cache
def library(isa: str) -> Library:
    """The library with the variant of that name, built where its sources changed. Raises BuildError with one line."""
    with tempfile.TemporaryDirectory(prefix="kvasir-probes-") as scratch:
        folder = Path(scratch)
        for path in (*SOURCES.glob("*.cpp"), *(path for name in KERNELS for path in build.FOLDER.glob(name))):
            shutil.copyfile(path, folder / path.name)
        if not build.is_fresh(LIBRARY, folder):
            build.build(LIBRARY, folder)
    return Library(isa=isa, handle=ctypes.CDLL(str(LIBRARY)))
