"""The generated CRD is structural, described, bounded and small."""

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from kvasir_api import crd, generate
from kvasir_api.schema import structural


def _walk(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _walk(child, f"{path}.{name}")
    for part in ("items", "additionalProperties"):
        if part in node:
            yield from _walk(node[part], f"{path}[]")


def _schema() -> dict[str, Any]:
    schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert isinstance(schema, dict)
    return schema


def test_definition_is_small() -> None:
    assert len(generate.crd_yaml(crd.definition()).encode()) <= crd.MAX_BYTES


def test_every_field_is_described() -> None:
    short = [
        path
        for path, node in _walk(_schema())
        if not path.endswith("[]") and path != ".metadata" and len(node.get("description", "")) < 15
    ]
    assert short == []


def test_every_spec_field_is_bounded() -> None:
    spec = _schema()["properties"]["spec"]
    unbounded = []
    for path, node in _walk(spec, "spec"):
        bound = {"integer": "maximum", "string": "maxLength", "array": "maxItems"}.get(node["type"])
        if bound and bound not in node and "enum" not in node:
            unbounded.append(path)
        if node["type"] == "object" and "additionalProperties" in node and "maxProperties" not in node:
            unbounded.append(path)
    assert unbounded == []


def test_no_floats_and_no_open_objects() -> None:
    for path, node in _walk(_schema()):
        assert node["type"] in ("object", "array", "string", "integer", "boolean"), path
        assert (
            node["type"] != "object"
            or path in ("", ".metadata")
            or "properties" in node
            or "additionalProperties" in node
        ), path


def test_rules_carry_messages_and_paths() -> None:
    rules = [rule for _, node in _walk(_schema()) for rule in node.get("x-kubernetes-validations", [])]
    assert len(rules) >= 6
    assert all(len(rule["message"]) > 20 for rule in rules)


def test_status_has_no_defaults() -> None:
    assert [path for path, node in _walk(_schema()["properties"]["status"]) if "default" in node] == []


def test_union_is_refused() -> None:
    class Bad(BaseModel):
        field: int | str = 1

    with pytest.raises(ValueError, match="union"):
        structural(Bad)


def test_reference_names_every_field() -> None:
    page = generate.reference()
    for part in ("spec", "status"):
        for path, _ in _walk(_schema()["properties"][part], part):
            assert path == part or path.endswith("[]") or f"`{path}`" in page, path
