"""What others wrote, by exact versions under .kvasir/outside: Python clients, Node clients, sources of suites.

Nothing of it enters .venv. What is there already is not fetched again; what cannot be fetched skips the test.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".kvasir" / "outside"
PINS = HERE / "python" / "requirements.txt"
INSTALL_S = 540


def venv_python() -> Path:
    """The interpreter of the environment that has the Python clients."""
    folder = FOLDER / "venv"
    python, mark = folder / "bin" / "python", folder / ".pins"
    pins = hashlib.sha256(PINS.read_bytes()).hexdigest()
    if not mark.is_file() or mark.read_text() != pins:
        uv = Path(sys.executable).with_name("uv")
        _run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
        _run(
            [uv, "pip", "install", "--quiet", "--require-hashes", "--requirement", PINS],
            env={"VIRTUAL_ENV": os.fspath(folder)},
        )
        mark.write_text(pins)
    return python


def node_folder() -> Path:
    """A folder with the Node clients and our tests of them."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = FOLDER / "node"
    folder.mkdir(parents=True, exist_ok=True)
    lock = (HERE / "node" / "package-lock.json").read_text()
    mark = folder / ".pins"
    for path in (HERE / "node").iterdir():
        shutil.copy(path, folder)
    if not mark.is_file() or mark.read_text() != lock:
        _run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)
        mark.write_text(lock)
    return folder


def source(requirement: str, *, member: str, env: Mapping[str, str] | None = None) -> Path:
    """The folder of one source package, unpacked as far as names contain member.

    requirement: NAME==VERSION. env: what its build script reads while pip looks at its metadata. Nothing is built.
    """
    folder = FOLDER / requirement.replace("==", "-")
    if not folder.is_dir():
        archive = _archive(requirement, env or {})
        unpacked = folder.with_suffix(".unpacked")
        shutil.rmtree(unpacked, ignore_errors=True)
        with tarfile.open(archive) as package:
            wanted = [one for one in package.getmembers() if member in one.name]
            package.extractall(unpacked, wanted, filter="data")
        (root,) = unpacked.iterdir()
        root.rename(folder)
        unpacked.rmdir()
    return folder


def _archive(requirement: str, env: Mapping[str, str]) -> Path:
    name, _, version = requirement.partition("==")
    archive = FOLDER / f"{name.replace('-', '_')}-{version}.tar.gz"
    if not archive.is_file():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name]
        _run([*command, "--dest", FOLDER, requirement], env=env)
    return archive


def _run(command: list[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, cwd=cwd, capture_output=True, text=True, check=False,
        timeout=INSTALL_S,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"{command[0]} could not fetch it: {(done.stderr or done.stdout).strip()[-300:]}")
