"""The library as its sources are now: it is built anew when they have changed since `make setup`."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from bench import probes as probing
from fakes.cpu_variants import EMULATED_BFLOAT16, VARIANTS
from kvasir_runtime.kernels.cpu import build, library, linear
from kvasir_runtime.kernels.cpu.library import Library


@pytest.fixture(scope="session")
def cpu_library():
    """The loaded library with two threads. Skipped only where there is no compiler."""
    if not build.is_fresh():
        try:
            build.build()
        except build.BuildError as error:
            pytest.skip(str(error)) if "no C++ compiler" in str(error) else pytest.fail(str(error))
    loaded = library.library()
    if loaded is None:
        pytest.skip(library.absence())
    loaded.start(2)
    return loaded


@pytest.fixture(scope="session")
def of_variant(request: pytest.FixtureRequest, cpu_library: Library) -> Callable[[str], Library]:
    """The library of a variant that this processor runs, or emulates. Skips the test for the others."""

    def found(isa: str) -> Library:
        if isa in library.variants(cpu_library.handle):
            return replace(cpu_library, isa=isa)
        if isa == linear.AMX_VARIANT:
            emulated: Library = request.getfixturevalue("emulated_bfloat16")
            return emulated
        pytest.skip(f"this processor does not run {isa}")

    return found


@pytest.fixture(params=VARIANTS)
def variant(
    request: pytest.FixtureRequest, cpu_library: Library, of_variant: Callable[[str], Library]
) -> Iterator[Library]:
    """Each variant that this processor runs or emulates, with two threads before and after."""
    found = of_variant(request.param)
    yield found
    for one in (cpu_library, found):
        one.start(2)


@pytest.fixture(scope="session")
def probes(cpu_library: Library) -> Library:
    """The probes of this processor's variant, with two threads of their own."""
    found = probing.library(cpu_library.isa)
    found.start(2)
    return found


@pytest.fixture(scope="session")
def processor_amx(cpu_library: Library) -> Library:
    """With the processor's AMX in use."""
    found, _ = linear.with_amx(cpu_library)
    if not found.amx:
        pytest.skip("this processor has no AMX")
    return found


@pytest.fixture(scope="session")
def emulated_bfloat16(cpu_library: Library, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """AVX-512 BF16 on a processor that has AVX-512 alone: the instructions that it lacks are functions."""
    return _emulated(cpu_library, tmp_path_factory)


@pytest.fixture(scope="session")
def emulated_amx(cpu_library: Library, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library of its own whose tiles are arrays, in use, and whose processor claims to have them."""
    emulated = _emulated(cpu_library, tmp_path_factory, "-DKVASIR_AMX_EMULATED", only=("attention", "linear"))
    found, name = linear.with_amx(emulated)
    assert (found.amx, name) == (True, "+amx")
    return found


def _emulated(here: Library, folders: pytest.TempPathFactory, *flags: str, only: Sequence[str] = ()) -> Library:
    """The variant that has tiles, compiled with these flags, and emulated where this processor does not run it."""
    runs = library.variants(here.handle)
    if "avx512" not in runs:
        pytest.skip(f"this processor does not run {linear.AMX_VARIANT}, nor what emulates it")
    if linear.AMX_VARIANT not in runs:
        flags = (*flags, "-include", str(EMULATED_BFLOAT16))
    target = folders.mktemp("emulated") / "libkvasir.so"
    build.build(target, only=only, variants=[linear.AMX_VARIANT], flags=flags)
    emulated = Library(isa=linear.AMX_VARIANT, handle=ctypes.CDLL(str(target)))
    emulated.start(2)
    return emulated
