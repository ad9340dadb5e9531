"""The library as its sources are now: it is built anew when they have changed since `make setup`."""

import pytest

from bench import probes as probing
from kvasir_runtime.kernels.cpu import build, library
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
def probes(cpu_library: Library) -> Library:
    """The probes of this processor's variant, with two threads of their own."""
    found = probing.library(cpu_library.isa)
    found.start(2)
    return found
