"""The guides name what exists, show nothing that no test executes, and leave no reason of a condition out.

What they show is executed here where it needs no cluster, else by tests/e2e/test_guides.py.
"""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from fakes.from_vllm_page import options
from fakes.from_vllm_page import rows as rows_of_vllm
from fakes.guides import PAGES, ROOT, blocks, files
from fakes.situations import situations
from kvasir_api import command, names
from kvasir_operator.status.compose import compose

TROUBLESHOOTING = ROOT / "docs/guides/troubleshooting.md"
COLUMNS = ["Reason", "What to look at", "What to do"]
TYPED = re.compile(r"^(\$ |kubectl |helm |kvasir |curl |make |docker )", re.MULTILINE)
OF_ROUTES = {"Accepted", "ResolvedRefs", "Invalid", "NameConflict", "ServiceNotFound"}
"""Reasons of kvasir_operator.status.route_conditions."""
KINDS = {"sh", "yaml", "json", "text", "python", "promql"}
FIELDS = {"--memory-fraction": "memoryPercent"}
"""Of options that are called otherwise in a service."""
PATH = re.compile(r"`((?:spec|status|pod|compute)\.[a-zA-Z.]+)`")


def rows(section: str) -> list[list[str]]:
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[2:] if cells and cells[0] == COLUMNS else []


def entries() -> dict[str, set[str]]:
    """Reasons by the heading under which they are."""
    found = {}
    for section in TROUBLESHOOTING.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        found[title] = {row[0].strip("`") for row in rows(text)}
    return {title: reasons for title, reasons in found.items() if reasons}


def test_every_reason_of_a_condition_has_its_entry():
    told = {reason for reasons in entries().values() for reason in reasons}
    assert told == {*names.REASONS, *OF_ROUTES}
    source = (ROOT / "operator/kvasir_operator/status/route_conditions.py").read_text()
    assert all(f'"{reason}"' in source for reason in OF_ROUTES)


def test_an_entry_says_what_to_look_at_and_what_to_do():
    said = [row for section in TROUBLESHOOTING.read_text().split("\n## ") for row in rows(section)]
    assert len(said) > len(names.REASONS)
    assert [row for row in said if len(row) != 3 or not row[2]] == []


def test_every_condition_has_its_heading():
    types = {value for name, value in vars(names).items() if name.startswith("CONDITION_")}
    titles = " ".join(entries())
    assert {one for one in types if not re.search(rf"\b{one}\b", titles)} == set()


@given(situations())
def test_a_reason_is_found_under_its_condition(found):
    told = entries()
    for condition in compose(found)[0].conditions:
        under = [title for title in told if condition.type in re.findall(r"\w+", title)]
        if condition.type == "Ready":
            under.append("Stalled")
        assert any(condition.reason in told[title] for title in under), condition


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_what_a_reader_types_is_executed(page: Path) -> None:
    """In a block of another kind it would not be; and what is executed is a script."""
    for block in blocks(page):
        assert block.kind in KINDS
        if block.kind == "sh":
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)
        else:
            assert not TYPED.search(block.text), block.text


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_in_the_text_exist(page: Path) -> None:
    for name in re.findall(r"\bkvasir ((?!-)[a-z-]+)(?= (?:--|[a-z]+/|[A-Z]|-)|`)", page.read_text()):
        assert name in command.main.list_commands(None), name


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_fields_in_the_text_exist(page: Path) -> None:
    schemas = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    roots = [
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in schemas if "versions" in crd.get("spec", {})
    ]
    assert len(roots) == 4
    for path in PATH.findall(page.read_text()):
        assert any(has(root, path.split(".")) for root in roots), path


def has(schema: dict[str, Any], path: list[str]) -> bool:
    """Whether a schema, or its spec, has a field; through lists and maps."""
    if not path:
        return True
    schema = schema.get("items") or schema
    inside = schema.get("properties") or {}
    if path[0] in inside:
        return has(inside[path[0]], path[1:])
    return path[0] != "spec" and "spec" in inside and has(inside["spec"], path)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_files_of_a_page_are_used(page: Path) -> None:
    typed = "\n".join(block.text for block in blocks(page) if block.kind == "sh")
    assert {name for name in files(page) if name not in typed} == set()


def test_the_service_has_every_option_of_vllms_deployment():
    """By the table for those who come from vLLM, and none besides."""
    shown = files(ROOT / "docs/guides/from-vllm-deployment.md")
    container = shown["vllm.yaml"][0]["spec"]["template"]["spec"]["containers"][0]
    service = shown["service.yaml"][0]
    given = {option: value for option, _, value in (arg.partition("=") for arg in container["args"])}
    assert service["spec"]["model"]["uri"] == f"hf://{given.pop('--model')}"
    assert service["metadata"]["name"] == given.pop("--served-model-name")
    table = {one: ours for theirs, ours, _ in rows_of_vllm("Starting a server") for one in options(theirs)}
    left = dict(service["spec"]["runtime"])
    for option, value in given.items():
        [name] = options(table[option])
        if value:  # else a switch for what is on without one
            want = round(float(value) * 100) if name == "--memory-fraction" else value
            assert str(left.pop(FIELDS.get(name) or camel(name))) == str(want), option
    assert left == {}
    secrets = {one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one}
    assert secrets == {service["spec"]["model"]["secretName"], service["spec"]["auth"]["secretName"]}


def camel(option: str) -> str:
    first, *rest = option.removeprefix("--").split("-")
    return first + "".join(word.title() for word in rest)
