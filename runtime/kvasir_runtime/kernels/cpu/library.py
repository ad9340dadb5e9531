"""Finds, checks and loads the library of C++ kernels, and gives its functions of this processor's variant.

Called once per process by `cpu.ops`. A call through ctypes releases the interpreter.
KVASIR_KERNELS=torch leaves the library aside, to compare, and the name of a variant takes that in place of the best;
KVASIR_CPU_LIBRARY names another file, to try one.
"""

import ctypes
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvasir_runtime.kernels.cpu import build

Function = Callable[..., Any]
NEEDED: Final = {"x86_64": "AVX2", "aarch64": "dot products (ARMv8.2)"}
"""By machine, what the least of its variants takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The loaded library.

    isa: the variant in use, such as avx512_bf16. amx: bfloat16 products of 16 rows and more are AMX's, in weights that
    are packed with it and in attention, whose order of summation is another than the variant's. invariant: attention
    computes one query as it does several, so that a token has the same bits with drafts.
    """

    isa: str
    handle: ctypes.CDLL
    amx: bool = False
    invariant: bool = False

    def function(self, name: str, *types: Any) -> Function:
        """The variant's kvasir_<name>, which takes arguments of these ctypes and returns nothing.

        Raises AttributeError where this variant has none of the name; ask `has` first.
        """
        function = getattr(self.handle, f"kvasir_{name}__{self.isa}")
        function.argtypes, function.restype = types, None
        typed: Function = function
        return typed

    def has(self, name: str) -> bool:
        """Whether this variant has a kvasir_<name>."""
        return hasattr(self.handle, f"kvasir_{name}__{self.isa}")

    @property
    def threads(self) -> int:
        """Threads that compute, the caller's included."""
        return int(self.handle.kvasir_pool_threads())

    def finish(self) -> None:
        """Take part in what this thread has begun, until it is computed."""
        self.handle.kvasir_pool_finish()

    def start(self, threads: int) -> int:
        """Compute with this many threads from now on; the number that could be started."""
        return int(self.handle.kvasir_pool_start(threads))


class Absent(Exception):
    """Why there are no C++ kernels here, in a few words for the banner."""


@functools.cache
def library() -> Library | None:
    """The library of this process, or None: `absence` says why."""
    try:
        return load(os.environ)
    except Absent:
        return None


def absence() -> str:
    """Why `library` is None, empty if it is not."""
    try:
        load(os.environ)
    except Absent as error:
        return str(error)
    return ""


def load(environment: Mapping[str, str]) -> Library:
    """The library that the environment selects. Raises Absent."""
    kernels = environment.get("KVASIR_KERNELS", "cpp")
    if kernels not in ("cpp", "torch", *build.VARIANTS):
        raise Absent(f"KVASIR_KERNELS={kernels} is none of cpp, torch, {', '.join(build.VARIANTS)}")
    if kernels == "torch":
        raise Absent("KVASIR_KERNELS=torch")
    given = environment.get("KVASIR_CPU_LIBRARY", "")
    path = Path(given) if given else build.LIBRARY
    if not path.is_file():
        raise Absent("the C++ kernels were not built: no compiler when Kvasir was installed")
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise Absent(f"the C++ kernels cannot be loaded: {error}") from error
    if not given:
        _check_sources(handle)
    found = variants(handle)
    if not found:
        raise Absent(f"this processor has no {NEEDED[build.MACHINE]}")
    if kernels != "cpp" and kernels not in found:
        raise Absent(f"KVASIR_KERNELS={kernels}, which this processor does not run")
    return Library(isa=found[0] if kernels == "cpp" else kernels, handle=handle)


def variants(handle: ctypes.CDLL) -> list[str]:
    """Those of a loaded library that this processor runs, the best first."""
    handle.kvasir_isas.restype = ctypes.c_char_p
    isas: bytes = handle.kvasir_isas()
    return isas.decode().split()


def _check_sources(handle: ctypes.CDLL) -> None:
    """Where the sources lie beside the library it must be theirs, since signatures change with them."""
    handle.kvasir_sources.restype = ctypes.c_char_p
    wanted = build.digest()
    if wanted and handle.kvasir_sources().decode() != wanted:
        raise Absent("the C++ kernels are older than their sources: run `make setup`")
