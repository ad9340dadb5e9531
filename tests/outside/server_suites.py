"""The tests that vLLM and llama.cpp have of their own servers, from their source packages: `make test-clients`.

suites/*.toml says for each which files are run, which tests of them cannot apply and so must fail, and why every other
file is left out; a file that neither names is a failure. Not collected by `make test`, since the packages are fetched.
"""

import os
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes import checkpoints
from outside import clients, environment

SUITE_S = 1800
SUITES = environment.HERE / "suites"


class Suite(NamedTuple):
    """Of another server. tests: folder of its tests in the source package; plugin: what puts Kvasir in its place.

    path: the folder from which the tests import their modules.
    """

    package: str
    tests: str
    plugin: str
    path: str = ""

    @property
    def list_file(self) -> Path:
        """Its declared list."""
        return SUITES / f"{self.plugin.removesuffix('_stand_in')}.toml"

    @property
    def declared(self) -> dict[str, Any]:
        """files.run, files.left_out by reason, fails and skips by pattern."""
        return tomllib.loads(self.list_file.read_text())


VLLM = Suite("vllm==0.33.0", "tests/entrypoints", "vllm_stand_in")
LLAMA_TESTS = "vendor/llama.cpp/tools/server/tests"
LLAMA_CPP = Suite("llama-cpp-python==0.3.36", LLAMA_TESTS, "llama_cpp_stand_in", path=LLAMA_TESTS)


def source(suite: Suite) -> Path:
    """The unpacked package. Pip looks at its metadata, for which vLLM's build script needs what is in our venv."""
    environment.venv_python()
    packages = next((environment.FOLDER / "venv" / "lib").glob("python*/site-packages"))
    building = {"PIP_NO_BUILD_ISOLATION": "0", "PYTHONPATH": os.fspath(packages), "VLLM_TARGET_DEVICE": "empty"}
    version = suite.package.partition("==")[2]
    env = {**building, "VLLM_VERSION_OVERRIDE": version} if suite is VLLM else {}
    return environment.source(suite.package, member=suite.tests, env=env)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """The folder of the model that takes the place of theirs."""
    folder = checkpoints.write(
        tmp_path_factory.mktemp("model") / "tiny", checkpoints.Shape(max_position_embeddings=40960)
    )
    (folder / "chat_template.jinja").write_text(clients.TEMPLATE)
    return folder


@pytest.mark.timeout(environment.INSTALL_S)
@pytest.mark.parametrize("suite", [VLLM, LLAMA_CPP], ids=lambda suite: suite.plugin)
def test_every_file_is_run_or_left_out_for_a_reason(suite):
    root, declared = source(suite), suite.declared["files"]
    files = {os.fspath(path.relative_to(root)) for path in (root / suite.tests).rglob("test_*.py")}
    assert len(files) > 20
    assert set(declared["run"]) <= files
    patterns = declared["left_out"]
    assert {name for name in files if not any(fnmatchcase(name, p) for p in [*declared["run"], *patterns])} == set()
    assert [p for p in patterns if not any(fnmatchcase(name, p) for name in files)] == []


@pytest.mark.timeout(environment.INSTALL_S + SUITE_S)
@pytest.mark.parametrize("suite", [VLLM, LLAMA_CPP], ids=lambda suite: suite.plugin)
def test_what_applies_passes_and_what_cannot_fails(suite, model):
    root = source(suite)
    places = [SUITES, environment.HERE.parent, root / suite.path]
    env = {
        "KVASIR_DECLARED": os.fspath(suite.list_file),
        "KVASIR_MODEL": os.fspath(model),
        "KVASIR_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(os.fspath, places)),
        "HF_HUB_OFFLINE": "1",
    }
    options = ["-c", SUITES / "pytest.ini", "--rootdir", root, "--confcutdir", root / suite.tests]
    command = [environment.venv_python(), "-m", "pytest", *options, "-p", "declared", "-p", suite.plugin]
    clients.passes([*command, *suite.declared["files"]["run"]], env, cwd=root, timeout_s=SUITE_S)
