"""The library as its sources are now: it is built anew when they have changed since `make setup`."""

import ctypes
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench import probes as probing
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


@pytest.fixture(params=list(build.VARIANTS))
def variant(request: pytest.FixtureRequest, cpu_library: Library) -> Iterator[Library]:
    """Each variant that this processor runs, with two threads before and after."""
    if request.param not in library.variants(cpu_library.handle):
        pytest.skip(f"this processor does not run {request.param}")
    yield replace(cpu_library, isa=request.param)
    cpu_library.start(2)


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
def emulated_amx(cpu_library: Library, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library of its own whose tiles are arrays, in use, and whose processor claims to have them."""
    if cpu_library.isa != linear.AMX_VARIANT:
        pytest.skip(f"{cpu_library.isa} has no tiles")
    target = tmp_path_factory.mktemp("amx") / "libkvasir.so"
    parts, flags = ("attention", "linear"), ["-DKVASIR_AMX_EMULATED"]
    build.build(target, only=parts, variants=[cpu_library.isa], flags=flags)
    emulated = Library(isa=cpu_library.isa, handle=ctypes.CDLL(str(target)))
    emulated.start(2)
    found, name = linear.with_amx(emulated)
    assert (found.amx, name) == (True, "+amx")
    return found
