"""Building and loading: what is missing is said, and what is stale is not called."""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from kvasir_runtime.kernels.cpu import build, library

ROOT = Path(__file__).parents[4]


@pytest.fixture
def environment():
    """os.environ, put back afterwards: the compiler is looked for in it."""
    kept = dict(os.environ)
    os.environ.pop("CXX", None)
    yield os.environ
    os.environ.clear()
    os.environ.update(kept)


def test_without_a_compiler_the_reason_is_said(environment, tmp_path):
    environment["PATH"] = str(tmp_path)
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler: none of g\+\+, clang\+\+, c\+\+ is on the path"):
        build.build(tmp_path / "x.so")


@pytest.mark.parametrize("machine", sorted(set(build.VARIANTS_OF) - {build.MACHINE}))
def test_the_library_of_another_machine_takes_a_cross_compiler(environment, tmp_path, machine):
    environment["PATH"] = str(tmp_path)
    with pytest.raises(build.BuildError, match=rf"none of {machine}-linux-gnu-g\+\+ is on the path"):
        build.build(tmp_path / "x.so", machine=machine)


def test_a_machine_without_kernels_is_named(tmp_path):
    with pytest.raises(build.BuildError, match="there are kernels for Linux on x86_64 and aarch64 only"):
        build.build(tmp_path / "x.so", machine="riscv64")


def test_a_compiler_that_is_named_must_exist(environment, tmp_path):
    environment["CXX"] = "no-such-compiler -m64"
    with pytest.raises(build.BuildError, match="CXX=no-such-compiler -m64 is not a program"):
        build.build(tmp_path / "x.so")


def test_a_compiler_that_does_not_end_is_named(environment, tmp_path, monkeypatch):
    compiler = tmp_path / "slow"
    compiler.write_text("#!/bin/sh\nexec sleep 60\n")
    compiler.chmod(0o700)
    environment["CXX"] = str(compiler)
    monkeypatch.setattr(build, "TIMEOUT_S", 0.05)
    with pytest.raises(build.BuildError, match=r"slow .* did not end within 0\.05 s"):
        build.build(tmp_path / "x.so")


def test_a_source_with_an_error_shows_it_and_leaves_the_library(cpu_library, tmp_path):
    (tmp_path / "wrong.cpp").write_text("int main( {\n")
    (tmp_path / "x.so").write_text("as it was")
    with pytest.raises(build.BuildError, match=r"wrong\.cpp:1"):
        build.build(tmp_path / "x.so", tmp_path)
    assert (tmp_path / "x.so").read_text() == "as it was"


def test_a_library_knows_its_sources(cpu_library, tmp_path):
    for path in (build.FOLDER / "cpu.cpp", build.FOLDER / "isa.h"):
        (tmp_path / path.name).write_text(path.read_text())
    built = build.build(tmp_path / "x.so", tmp_path)
    assert build.is_fresh(built, tmp_path)
    (tmp_path / "cpu.cpp").write_text((tmp_path / "cpu.cpp").read_text() + "\n")
    assert not build.is_fresh(built, tmp_path)
    handle = ctypes.CDLL(str(built))
    handle.kvasir_sources.restype = ctypes.c_char_p
    assert handle.kvasir_sources().decode() != build.digest(tmp_path)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"KVASIR_KERNELS": "torch"}, "KVASIR_KERNELS=torch"),
        ({"KVASIR_KERNELS": "fast"}, f"KVASIR_KERNELS=fast is none of cpp, torch, {next(iter(build.VARIANTS))}"),
        ({"KVASIR_CPU_LIBRARY": "/nonexistent"}, "were not built"),
        ({"KVASIR_CPU_LIBRARY": str(Path(__file__))}, "cannot be loaded"),
    ],
)
def test_what_leaves_the_library_aside_is_said(environment, why):
    with pytest.raises(library.Absent, match=why):
        library.load(environment)


def test_the_variant_is_the_best_of_those_that_the_processor_runs(cpu_library):
    found = library.variants(cpu_library.handle)
    assert cpu_library.isa == found[0]
    assert set(found) <= set(build.VARIANTS)


@pytest.mark.parametrize("isa", list(build.VARIANTS))
def test_a_variant_is_forced_where_the_processor_runs_it(cpu_library, isa):
    if isa in library.variants(cpu_library.handle):
        assert library.load({"KVASIR_KERNELS": isa}).isa == isa
        return
    with pytest.raises(library.Absent, match=f"KVASIR_KERNELS={isa}, which this processor does not run"):
        library.load({"KVASIR_KERNELS": isa})


def test_the_library_has_the_names_of_its_functions(cpu_library):
    assert cpu_library.has("attention")
    assert not cpu_library.has("probe"), "probes are for tests alone"
    assert not cpu_library.has("nothing")


@pytest.mark.parametrize(
    ("prepare", "tests", "code", "said"),
    [
        (1, 0, 0, "left out: its packages were not there after"),
        (124, 0, 0, "left out: its packages were not there after"),
        (0, 124, 0, "left out: its tests were not over after"),
        (0, 1, 1, "3 passed in 1s"),
        (0, 2, 2, "3 passed in 1s"),
        (0, 0, 0, "ci: arm64: 3 passed in 1s, packages there after"),
        (0, 0, 0, "left out: no test ran: no tests ran in 1s"),
    ],
)
def test_only_what_fails_on_arm64_fails_continuous_integration(tmp_path, prepare, tests, code, said):
    closing = "no tests ran in 1s" if "no tests ran" in said else "3 passed in 1s"
    for name in (".ci/arm64", "tests/outside/arm64.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    script = tmp_path / ".ci" / "arm64"
    script.write_text((ROOT / ".ci" / "arm64").read_text())
    emulated = tmp_path / "tests" / "outside" / "arm64.sh"
    ends = f'case "$1" in --prepare) exit {prepare};; esac; echo "= {closing} ="; exit {tests}'
    emulated.write_text(f"#!/bin/sh\n{ends}\n")
    emulated.chmod(0o755)
    result = subprocess.run(["bash", script], capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == code, result.stderr
    assert said in result.stdout
