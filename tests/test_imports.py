"""What each process may carry: proven in environments that hold one extra and nothing else, and by blocking imports.

The floors in pyproject.toml say the same about what the source writes; here it is what Python really loads.
"""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [str(ROOT / folder) for folder in ("crds", "operator", "runtime")]
HOMES = {
    "kvasir_api": "crds",
    "kvasir_kube": "operator",
    "kvasir_operator": "operator",
    "kvasir_gateway": "operator",
    "kvasir_local": "operator",
    "kvasir_runtime": "runtime",
}
# Imports every module named on stdin, then prints those of the unwanted packages that came along.
PROGRAM = """
import importlib, sys
unwanted = set(sys.argv[1].split(","))
for name in sys.stdin.read().split():
    importlib.import_module(name)
print(",".join(sorted(unwanted & {name.partition(".")[0] for name in sys.modules})))
"""


def modules_of(package: str) -> list[str]:
    """The package and all modules in it, by name, without importing any; what is run and not imported is left out."""
    folder = ROOT / HOMES[package] / package
    found = [package]
    stack = [(folder, package)]
    while stack:
        place, prefix = stack.pop()
        for module in pkgutil.iter_modules([str(place)]):
            if not module.ispkg and not (place / f"{module.name}.py").exists():
                continue  # a compiled library that is opened by its path and is no module
            found.append(f"{prefix}.{module.name}")
            if module.ispkg:
                stack.append((place / module.name, f"{prefix}.{module.name}"))
    return [name for name in found if not name.endswith(("__main__", "demo.train", "simulation.plots"))]


def loaded(python: Path | str, names: list[str], unwanted: str) -> str:
    """Those of the unwanted top-level packages that importing the names has loaded, comma separated."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)}
    command = [str(python), "-c", PROGRAM, unwanted]
    result = subprocess.run(
        command, input="\n".join(names), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(
    ("extra", "packages", "unwanted"),
    [
        ("operator", ["kvasir_api", "kvasir_kube", "kvasir_operator"], "torch,triton,transformers,fastapi,grpc"),
        ("gateway", ["kvasir_api", "kvasir_kube", "kvasir_gateway"], "torch,triton,transformers,fastapi,kopf"),
        ("runtime", ["kvasir_api", "kvasir_runtime"], "kubernetes,kopf,transformers,grpc"),
    ],
    ids=["operator", "gateway", "runtime"],
)
def test_extra_is_enough_and_carries_nothing_foreign(tmp_path, extra, packages, unwanted):
    python = environment_of(extra, tmp_path / "env")
    names = [name for package in packages for name in modules_of(package)]
    assert loaded(python, names, unwanted) == ""
    assert foreign(python, unwanted) == []


def environment_of(extra: str, place: Path) -> Path:
    """A virtual environment with the pinned packages of one extra; half a second when uv has them in its cache."""
    uv = Path(sys.executable).with_name("uv")
    python = place / "bin" / "python"
    pinned = ["-r", "pyproject.toml", "--extra", extra, "-c", "constraints.txt"]
    for command in (
        [uv, "venv", "--quiet", "--python", sys.executable, place],
        [uv, "pip", "install", "--quiet", "--python", python, *pinned],
    ):
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
    return python


def foreign(python: Path, unwanted: str) -> list[str]:
    """Those of the unwanted packages that the environment could import."""
    program = "import importlib.util, sys; print([n for n in sys.argv[1].split(',') if importlib.util.find_spec(n)])"
    result = subprocess.run([python, "-c", program, unwanted], capture_output=True, text=True, check=True)
    return [name for name in result.stdout.strip("[]\n ").replace("'", "").split(", ") if name]


@pytest.mark.parametrize(
    ("packages", "unwanted"),
    [
        (["kvasir_api"], "torch,kubernetes,kopf,aiohttp,fastapi,zmq,grpc"),
        (["kvasir_runtime.server", "kvasir_runtime.client", "kvasir_runtime.wire"], "torch,triton,transformers,numpy"),
        (
            ["kvasir_runtime.commands", "kvasir_runtime.bench", "kvasir_runtime.offline"],
            "torch,triton,transformers,fastapi",
        ),
        (["kvasir_runtime.core"], "torch,triton,fastapi,zmq"),
        (["kvasir_local"], "torch,triton,transformers,kopf"),
    ],
    ids=["contract", "api-process", "commands", "core", "local"],
)
def test_process_loads_nothing_it_does_not_need(packages, unwanted):
    names = [
        name
        for package in packages
        for name in modules_of(package.partition(".")[0])
        if name == package or name.startswith(package + ".")
    ]
    assert names
    assert loaded(sys.executable, names, unwanted) == ""


@pytest.mark.parametrize("package", ["kvasir_operator", "kvasir_gateway"])
def test_a_process_listens_before_it_loads_what_takes_long(package):
    """A probe that comes meanwhile waits, so that no start leaves a Warning event."""
    assert loaded(sys.executable, [f"{package}.__main__"], "kopf,kubernetes,aiohttp,grpc") == ""
