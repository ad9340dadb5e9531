"""The rules of the house that can be read from text and syntax trees: lengths, places, words, freshness."""

import ast
import gc
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from kvasir_api import control_plane_metrics, crd, metrics
from kvasir_api.flags import flag
from kvasir_api.options import ServeOptions

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [ROOT / path for path in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_KERNEL_LINES = 90
MAX_TEST_SLEEP_S = 0.05
MAX_CONSTRUCTOR_PARAMETERS = 8
MAX_SERVER_FILES = 30
MAX_GLOSSARY_TERMS = 40

PURE_ROOMS = {
    "kvasir_operator": ("observed", "desired", "diff", "rollout", "status", "scaling", "stages", "election"),
    "kvasir_gateway": (
        *("backends", "block_peers", "choose", "handover", "held_places", "hold_queue"),
        *("load_history", "model_routes", "parsed_objects"),
        *["placements", "prefix", "rate_limits", "relay/backend_answer", "relay/splice", "router", "routing_table"],
        *["queue_room", "tenant_access", "wake_forecast"],
    ),
    "kvasir_local": ("node/rules",),
    "kvasir_runtime": (
        "core",
        "runner/kv_offload/slot_table",
        "runner/kv_offload/store_layout",
        "runner/graphs/cudagraph_sizes",
        "frontend/parsing",
    ),
}

# Words that stood for a term of the field, and English that a newcomer stumbles over: they must not come back.
RETIRED_NAMES = re.compile(
    r"\b(gang|Drawer|Foreseen|Lobby|devicerows|startplan|packets|toolbody|announcer|cache_rows)\b"
)
RETIRED_ENGLISH = re.compile(r"\b(nobody|whoever|anew|asks for)\b|\bgone deaf\b", re.IGNORECASE)

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
    """Syntax trees of them all. A million objects that stay: looking for garbage among them takes most of the time."""
    gc.disable()
    try:
        return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text(), str(path))) for path in sources())
    finally:
        gc.freeze()
        gc.enable()


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


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the packages by its dotted name."""
    parsed, found = dict(trees()), {}
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            if "_pb2" not in path.name:
                name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = parsed[str(path.relative_to(ROOT))]
    return found


def imports(tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """Modules of ours that a module imports anywhere in it, for type checking only or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from (name for name in (whole if whole in known else node.module,) if name in known)


def test_a_public_class_name_stands_for_one_thing_in_its_package():
    homes = defaultdict(list)
    for name, tree in modules().items():
        parts = name.split(".")
        # Each HTTP API names its bodies as its documentation does.
        space = ".".join(parts[:4]) if parts[1:3] == ["server", "api"] else parts[0]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[space, node.name].append(name)
    breaches = [f"{name}: {', '.join(found)}" for (_, name), found in homes.items() if len(found) > 1]
    assert not breaches, report(breaches)


def test_modules_import_one_another_in_no_circle():
    known = modules()
    graph = {name: set(imports(tree, known)) - {name} for name, tree in known.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1]))


def test_constructors_take_few_parameters():
    breaches = []
    for name, tree in modules().items():
        for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    count = len(node.args.args) - 1 + len(node.args.kwonlyargs)
                    if count > MAX_CONSTRUCTOR_PARAMETERS:
                        breaches.append(f"{name}.{owner.name}: {count} parameters")
    assert not breaches, report(breaches)


def test_classes_inherit_from_ours_once_at_most():
    """A base that declares neither fields nor methods, only how strict a body is, does not count."""
    bases: dict[str, set[str]] = defaultdict(set)
    for tree in modules().values():
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            says = [item for item in node.body if not isinstance(item, ast.Expr)]
            only_config = all(isinstance(item, ast.Assign) and "model_config" in ast.unparse(item) for item in says)
            if not only_config:
                bases[node.name] |= {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases} - {
                    node.name
                }
    breaches = [
        f"{name} < {base} < {further}"
        for name, direct in bases.items()
        for base in direct & bases.keys()
        for further in bases[base] & bases.keys()
    ]
    assert not breaches, report(breaches)


def test_json_is_declared_once():
    found = [
        name
        for name, tree in modules().items()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node).startswith(("Json =", "Json:"))
    ]
    assert len(found) == 1, report(found)


def test_the_top_of_the_server_stays_small():
    top = [path.name for path in (ROOT / "runtime/kvasir_runtime/server").glob("*.py")]
    assert len(top) <= MAX_SERVER_FILES, report(sorted(top))


def test_retired_words_do_not_come_back():
    breaches = []
    for name, text in texts():
        if name == "CHANGELOG.md" or name.startswith(("docs/benchmarks/", "tests/")):
            continue
        pattern = RETIRED_NAMES if name.endswith((".py", ".cpp", ".h")) else None
        for number, line in enumerate(text.splitlines(), 1):
            hit = RETIRED_ENGLISH.search(line) or (pattern.search(line) if pattern else None)
            if hit:
                breaches.append(f"{name}:{number}: {hit[0]}")
    assert not breaches, report(breaches)


def test_names_of_tests_have_no_retired_words():
    named = [(name, test) for name, text in texts() for test in re.findall(r"def (test_\w+)", text)]
    assert named
    breaches = [f"{name}: {test}" for name, test in named if RETIRED_ENGLISH.search(test.replace("_", " "))]
    assert not breaches, report(breaches)


def test_every_test_file_names_the_module_it_tests():
    """tests/PACKAGE/ROOM/test_MODULE.py, test_MODULE_ASPECT.py, or test_ROOM_ASPECT.py for a room as a whole."""
    breaches = []
    for package in PACKAGES:
        for path in sorted((ROOT / "tests" / package.name).rglob("test_*.py")):
            # tests/…/interpreted has the tests of its parent that run in Triton's interpreter
            room = package.parent / path.relative_to(ROOT / "tests").parent
            room = room if room.is_dir() else room.parent
            words = path.stem.removeprefix("test_").split("_")
            names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
            here = room.name in names or any(
                (room / f"{name}.py").is_file() or (room / name).is_dir() for name in names
            )
            if not here:
                breaches.append(str(path.relative_to(ROOT)))
    assert not breaches, report(breaches)


def test_the_glossary_stays_short():
    terms = re.findall(r"^\| (?!Term|---)(.+?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert 20 < len(terms) <= MAX_GLOSSARY_TERMS
    assert terms == sorted(terms, key=str.lower)


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
    of_control_plane = (*control_plane_metrics.OPERATOR, *control_plane_metrics.GATEWAY)
    declared = (*metrics.RUNTIME, *metrics.VLLM, *metrics.HTTP, *of_control_plane)
    wanted += [metric.name for metric in declared]
    missing = [name for name in wanted if f"| `{name}` |" not in page]
    assert not missing, report(missing)


def test_every_operation_has_a_reference_and_cases():
    kernels = ROOT / "runtime" / "kvasir_runtime" / "kernels"
    table = next(node for node in ast.parse((kernels / "ops.py").read_text()).body if isinstance(node, ast.ClassDef))
    named = [node.target.id for node in table.body if isinstance(node, ast.AnnAssign)]
    # Facts of a table, and what is used once at start and has tests of its own.
    others = {
        "name",
        "fallback",
        "quantize",
        "decoder_step",
        "row_sampler",
        "set_threads",
        "invariant_dtypes",
        "packs_bfloat16",
        "collectives",
    }
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
    rooms = {f"{package}.{room.replace('/', '.')}" for package, names in PURE_ROOMS.items() for room in names}
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
