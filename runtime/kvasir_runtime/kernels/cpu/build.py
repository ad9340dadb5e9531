"""Compiles the C++ kernels into one library, with the compiler that is there. Standard library only.

Called by hatch_build.py when Kvasir is installed (which loads this file by its path, before anything is importable),
and by `python -m kvasir_runtime.kernels.cpu.build` after a change. The library must run on any processor of its
kind, so nothing is compiled for the machine at hand: each *.isa.cpp is compiled once per variant, and the library is
asked at run time which variant the processor has.
"""

import argparse
import concurrent.futures
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
LIBRARY: Final = FOLDER / "libkvasir.so"
FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra")
# Sums must come out the same wherever a function is inlined, so the compiler may not contract them at will.
FLAGS_ISA: Final = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
AVX2: Final = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2", "-mlzcnt", "-mpopcnt")
AVX512: Final = (
    *AVX2,
    "-mavx512f",
    "-mavx512bw",
    "-mavx512dq",
    "-mavx512vl",
    "-mavx512vnni",
    "-mprefer-vector-width=512",
)
VARIANTS_OF: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "x86_64": {
        "avx2": AVX2,
        "avx2_vnni": (*AVX2, "-mavxvnni"),
        "avx512": AVX512,
        "avx512_bf16": (*AVX512, "-mavx512bf16"),
    },
    "aarch64": {"neon": ("-march=armv8.2-a+dotprod",)},
}
"""By machine, the name and the compiler's flags of each."""
MACHINE: Final = platform.machine()
VARIANTS: Final = VARIANTS_OF.get(MACHINE, {})
COMPILERS: Final = ("g++", "clang++", "c++")
TIMEOUT_S: Final = 1800
"""Of one call of the compiler: half a minute, but for machines with much else to do."""


class BuildError(Exception):
    """Why there is no library, in one line."""


def sources(folder: Path = FOLDER) -> list[Path]:
    """What the library is made from, in a fixed order."""
    return sorted(path for pattern in ("*.cpp", "*.h") for path in folder.glob(pattern))


def digest(folder: Path = FOLDER) -> str:
    """Identity of the sources, which the library carries; empty where there are none."""
    found = sources(folder)
    if not found:
        return ""
    parts = (part for path in found for part in (path.name.encode(), b"\0", path.read_bytes(), b"\0"))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def build(
    target: Path = LIBRARY,
    folder: Path = FOLDER,
    *,
    only: Sequence[str] = (),
    variants: Sequence[str] = (),
    flags: Sequence[str] = (),
    machine: str = MACHINE,
) -> Path:
    """Compile and link into target, which is replaced as a whole. Raises BuildError with one line.

    only: beginnings of the names of *.isa.cpp files to compile, for work on one of them; empty takes all.
    variants: those to compile, empty takes all of the machine's. flags: more flags for the compiler.
    machine: whose library it is to be, as platform.machine() names it; another one's takes a cross-compiler.
    """
    compiler = [*_compiler(machine), *flags]
    with tempfile.TemporaryDirectory(prefix="kvasir-cpu-") as scratch:
        chosen = {name: of for name, of in VARIANTS_OF[machine].items() if not variants or name in variants}
        jobs = list(_jobs(compiler, folder, Path(scratch), only, chosen))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(_run, (command for command, _ in jobs)))
        linked = Path(scratch) / target.name
        # Symbols of a C++ library are not needed, so none is asked for: any Linux with this libc or newer will do.
        _run(
            [
                *compiler,
                "-shared",
                "-Wl,--as-needed",
                "-Wl,-z,defs",
                "-o",
                str(linked),
                *(str(o) for _, o in jobs),
                "-lm",
                "-lpthread",
            ]
        )
        # Beside the target first: renaming is only whole within one file system.
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(linked, beside)
        beside.replace(target)
    return target


def is_fresh(target: Path = LIBRARY, folder: Path = FOLDER) -> bool:
    """Whether the library was built from the sources as they are now. It is not loaded, only searched."""
    return target.is_file() and digest(folder).encode() in target.read_bytes()


def platform_tag() -> str:
    """The platform part of a wheel's name."""
    return _tag(MACHINE)


def _tag(machine: str) -> str:
    return f"{platform.system().lower()}_{machine}"


def _compiler(machine: str) -> list[str]:
    """The command of $CXX, or the first compiler on the path that compiles for the machine."""
    if platform.system() != "Linux" or machine not in VARIANTS_OF:
        raise BuildError(f"there are kernels for Linux on {' and '.join(VARIANTS_OF)} only, not on {_tag(machine)}")
    given = shlex.split(os.environ.get("CXX", ""))
    if given and not shutil.which(given[0]):
        raise BuildError(f"CXX={shlex.join(given)} is not a program")
    names = COMPILERS if machine == MACHINE else (f"{machine}-linux-gnu-g++",)
    found = given or next(([name] for name in names if shutil.which(name)), [])
    if not found:
        raise BuildError(f"no C++ compiler: none of {', '.join(names)} is on the path, and CXX is not set")
    return found


def _jobs(
    compiler: list[str], folder: Path, scratch: Path, only: Sequence[str], variants: Mapping[str, Sequence[str]]
) -> list[tuple[list[str], Path]]:
    """A command and its object file for each source and variant, the longest first."""
    plain, special = [], []
    for path in sorted(folder.glob("*.cpp"), key=lambda p: -p.stat().st_size):
        base = [*compiler, *FLAGS, "-c", str(path)]
        if not path.name.endswith(".isa.cpp"):
            plain.append(([*base, f'-DKVASIR_SOURCES="{digest(folder)}"'], path.stem))
        elif not only or path.name.startswith(tuple(only)):
            special += [
                ([*base, *FLAGS_ISA, *of_variant, f"-DKVASIR_ISA={name}"], f"{path.stem}.{name}")
                for name, of_variant in variants.items()
            ]
    named = ((command, scratch / f"{name}.o") for command, name in special + plain)
    return [([*command, "-o", str(output)], output) for command, output in named]


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{shlex.join(command)} did not end within {TIMEOUT_S} s") from error
    if result.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{result.stderr.strip()}")


def main(arguments: list[str]) -> int:
    """Build from the command line."""
    parser = argparse.ArgumentParser(description="Compile the CPU kernels.")
    parser.add_argument(
        "--output", type=Path, default=LIBRARY, help="library to write (default: where it is loaded from)"
    )
    parser.add_argument("--sources", type=Path, default=FOLDER, help="folder of the sources")
    parser.add_argument(
        "--only", nargs="*", default=(), help="beginnings of names of *.isa.cpp files; others are left out"
    )
    parser.add_argument("--machine", choices=list(VARIANTS_OF), default=MACHINE, help="whose library it is to be")
    parser.add_argument("--if-stale", action="store_true", help="do nothing when the library is as new as its sources")
    given = parser.parse_args(arguments)
    if given.if_stale and is_fresh(given.output, given.sources):
        return 0
    try:
        sys.stdout.write(f"built {build(given.output, given.sources, only=given.only, machine=given.machine)}\n")
    except BuildError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
