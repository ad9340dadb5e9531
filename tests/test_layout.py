"""The rules of the house that can be read from the files: lengths, places, words, freshness.

Everything here is decided from text and syntax trees, so that the whole file runs in a second or two.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kvasir_api import crd, metrics
from kvasir_api.options import ServeOptions, flag

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / path for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 90
MAX_TEST_SLEEP_S = 0.05

PURE_ROOMS = {
    "kvasir_operator": ("observed", "desired", "diff", "rollout", "status", "scaling", "stages", "election"),
    "kvasir_gateway": ("choose", "ring", "prefix"),
    "kvasir_local": ("node/rules",),
    "kvasir_runtime": ("core", "runner/graphs/cudagraph_sizes", "frontend/parsing"),
}

# Written apart, because this file is read as well. Packages come from whatever index the user's tools are set to.
REGISTRIES = "pypi org,pythonhosted org,proxy golang org,sum golang org,npmjs org,docker io,ghcr io,quay io,nvcr io"
REGISTRY_HOSTS = REGISTRIES.replace(" ", ".").split(",")
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(?:root|work|home/\w+|Users/\w+)/")


@cache
def tracked() -> list[Path]:
    """Files that git follows and that are there; all files outside of hidden folders where there is no git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        inside = (path for path in ROOT.rglob("*") if not any(p.startswith(".") for p in path.relative_to(ROOT).parts))
        return [path for path in inside if path.is_file()]
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of each tracked file that is text."""
    for path in tracked():
        try:
            yield str(path.relative_to(ROOT)), path.read_text()
        except UnicodeDecodeError:
            continue


def sources() -> list[Path]:
    """Python files that people write; those that grpcio-tools writes are left out."""
    return sorted(
        path
        for folder in ("crds", "operator", "runtime", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if "_pb2" not in path.name and "__pycache__" not in path.parts
    )


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text(), str(path))) for path in sources())


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("jit" in ast.unparse(decorator).split("(")[0] for decorator in function.decorator_list)


def report(breaches: list[str]) -> str:
    return "\n" + "\n".join(breaches)


def test_files_stay_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    breaches = [f"{name}: {n} lines" for name, n in lengths.items() if n >= MAX_FILE_LINES]
    assert not breaches, report(breaches)


def test_functions_stay_short():
    breaches = []
    for name, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
                continue
            lines = node.end_lineno - node.lineno + 1
            if lines > (MAX_KERNEL_LINES if is_kernel(node) else MAX_FUNCTION_LINES):
                breaches.append(f"{name}:{node.lineno}: {node.name} has {lines} lines")
    assert not breaches, report(breaches)


def test_no_test_sleeps_long():
    breaches = []
    for name, tree in trees():
        if not name.startswith("tests/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("sleep") and node.args:
                seconds = node.args[0].value if isinstance(node.args[0], ast.Constant) else 0
                if seconds > MAX_TEST_SLEEP_S:
                    breaches.append(f"{name}:{node.lineno}: sleeps {seconds} s")
    assert not breaches, report(breaches)


def test_every_module_says_what_it_is_for():
    breaches = [name for name, tree in trees() if tree.body and not ast.get_docstring(tree)]
    assert not breaches, report(breaches)


def test_every_package_is_present_and_typed():
    wanted = [package / name for package in PACKAGES for name in ("__init__.py", "py.typed")]
    missing = [str(path.relative_to(ROOT)) for path in wanted if not path.is_file()]
    assert not missing, report(missing)


def test_every_folder_of_modules_is_a_package():
    folders = {path.parent for path in sources() if any(package in path.parents for package in PACKAGES)}
    missing = [str(folder.relative_to(ROOT)) for folder in sorted(folders) if not (folder / "__init__.py").is_file()]
    assert not missing, report(missing)


def test_no_package_shadows_the_standard_library():
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_test_folders_are_no_packages():
    found = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("__init__.py")]
    assert not found, report(found)


def test_no_file_names_a_registry():
    breaches = [f"{name}: {host}" for name, text in texts() for host in REGISTRY_HOSTS if host in text]
    assert not breaches, report(breaches)


def test_no_file_knows_a_machine():
    breaches = [f"{name}: {match[0]}" for name, text in texts() for match in MACHINE_PATH.finditer(text)]
    assert not breaches, report(breaches)


def test_changelog_has_a_place_for_the_next_release():
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


def test_generated_files_are_fresh():
    check = [sys.executable, "-m", "kvasir_api.generate", "--check"]
    result = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_field_option_and_metric_is_in_the_reference():
    page = (ROOT / "docs" / "reference.md").read_text()
    schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    wanted = [f"spec.{name}" for name in schema["spec"]["properties"]]
    wanted += [flag(name) for name in ServeOptions.model_fields if name != "model"]
    declared = (*metrics.RUNTIME, *metrics.VLLM, *metrics.HTTP, *metrics.OPERATOR, *metrics.GATEWAY)
    wanted += [metric.name for metric in declared]
    missing = [name for name in wanted if f"| `{name}` |" not in page]
    assert not missing, report(missing)


def test_every_operation_has_a_reference_and_cases():
    kernels = ROOT / "runtime" / "kvasir_runtime" / "kernels"
    table = next(node for node in ast.parse((kernels / "ops.py").read_text()).body if isinstance(node, ast.ClassDef))
    named = [node.target.id for node in table.body if isinstance(node, ast.AnnAssign)]
    # Facts of a table, and what is used once at start and has tests of its own.
    others = {"name", "fallback", "quantize", "decoder_step", "set_threads", "invariant_dtypes"}
    fields = [name for name in named if name not in others]
    assert fields
    breaches = []
    for field in fields:
        tree = ast.parse((kernels / f"{field}.py").read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        breaches += [f"kernels/{field}.py: no {name}()" for name in ("reference", "cases") if name not in functions]
    assert not breaches, report(breaches)


def test_every_pure_room_is_under_the_contract():
    contracts = {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
    homes = {path.name: path for path in PACKAGES}
    rooms = {
        f"{package}.{room.replace('/', '.')}"
        for package, names in PURE_ROOMS.items()
        for room in names
        if (homes[package] / room).is_dir() or (homes[package] / f"{room}.py").is_file()
    }
    assert rooms == set(contracts["pure-rooms"]["source_modules"])


def test_every_make_target_is_in_the_help():
    makefile = (ROOT / "Makefile").read_text()
    documented = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    wanted = "help setup demo demo-down test check fmt lint types floors generate lock bench images deploy clean"
    assert set(wanted.split()) <= documented


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs/architecture.md"])
def test_pages_are_there(name):
    assert (ROOT / name).stat().st_size > 500


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda path: path.name
)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_shows_a_recording_of_the_demo() -> None:
    shown = (ROOT / "README.md").read_text().split("<!-- recording -->")[1].split("<!-- /recording -->")[0]
    assert "scaled up to" in shown
    assert "first token" in shown
