"""The generated CRD is structural, described, bounded and small."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from kvasir_api import crd, generate
from kvasir_api.autoscaling import Autoscaling
from kvasir_api.roles import PrefillRole, Roles
from kvasir_api.rollout import Analysis, Rollout
from kvasir_api.schema import structural
from kvasir_api.service import InferenceServiceSpec, ModelSpec


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


@pytest.mark.parametrize("definition", [crd.definition, crd.accelerators, crd.model_routes, crd.tenants])
def test_definition_is_small(definition: Any) -> None:
    assert len(generate.crd_yaml(definition()).encode()) <= crd.MAX_BYTES


def _definitions() -> list[dict[str, Any]]:
    return [
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for definition in (crd.definition(), crd.accelerators(), crd.model_routes(), crd.tenants())
    ]


def _nodes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node of all definitions with its path, but for the three parts that the API server itself describes."""
    for schema in _definitions():
        for name in ("spec", "status"):
            if name in schema["properties"]:
                yield from _walk(schema["properties"][name], name)


ROLES = Roles(prefill=PrefillRole())
ANYTHING = {"spec.podPatches[].value"}
"""What may be of any type: an operation of a JSON Patch puts it into a pod. The operator bounds it."""
BOUNDS = {"integer": ("minimum", "maximum"), "string": ("maxLength",), "array": ("maxItems",)}


def test_every_field_is_described_in_a_sentence() -> None:
    short = [
        path
        for path, node in _nodes()
        if not path.endswith("[]") and (len(node.get("description", "")) < 15 or "." not in node["description"])
    ]
    assert short == []


def test_every_field_is_bounded_in_spec_and_status() -> None:
    unbounded = []
    for path, node in _nodes():
        if "enum" in node or node.get("format") == "date-time" or path in ANYTHING:
            continue
        if any(bound not in node for bound in BOUNDS.get(node["type"], ())):
            unbounded.append(path)
        if node["type"] == "object" and "additionalProperties" in node and "maxProperties" not in node:
            unbounded.append(path)
    assert unbounded == []


def test_no_floats_and_no_open_objects() -> None:
    for path, node in _nodes():
        if path in ANYTHING:
            continue
        assert node["type"] in ("object", "array", "string", "integer", "boolean"), path
        assert node["type"] != "object" or "properties" in node or "additionalProperties" in node, path
        assert "x-kubernetes-preserve-unknown-fields" not in node, path


def test_every_list_says_how_it_is_merged() -> None:
    for path, node in _nodes():
        if node.get("type") != "array":
            continue
        kind, items = node["x-kubernetes-list-type"], node["items"]
        assert kind in ("atomic", "set", "map"), path
        assert kind != "set" or items["type"] == "string", path
        for name in node.get("x-kubernetes-list-map-keys", ()):
            # A key must be there: the API server merges by it.
            assert name in items.get("required", ()) or "default" in items["properties"][name], path


def test_a_stored_spec_has_what_its_author_wrote() -> None:
    """The operator knows the defaults. The scale subresource needs a number, and a list's items need their keys."""
    filled = {path for path, node in _walk(_schema()["properties"]["spec"]) if "default" in node}
    assert {path for path in filled if "[]" not in path} == {".replicas"}


def test_what_may_be_left_out_of_a_class_has_a_default_or_means_its_absence() -> None:
    absent = {"runtimeImage", "pod.runtimeClassName", "pod.priorityClassName", "podPatches[].value"}
    absent.add("pod.tolerations[].tolerationSeconds")
    lacking = set()
    for path, node in _walk(_definitions()[1]["properties"]["spec"]):
        for name, child in node.get("properties", {}).items():
            if name not in node.get("required", ()) and "default" not in child:
                lacking.add(f"{path}.{name}".lstrip("."))
    assert lacking == absent


def test_a_field_that_may_be_left_out_names_its_default() -> None:
    """A number or a word, which `kubectl explain` shows; an empty text or list says by itself what it means."""
    found = InferenceServiceSpec(
        model=ModelSpec(uri="pvc://models/tiny"),
        autoscaling=Autoscaling(),
        roles=ROLES,
        rollout=Rollout(analysis=Analysis()),
    )
    defaults = found.model_dump(by_alias=True)
    for path, node in _walk(_schema()["properties"]["spec"]):
        if node["type"] in ("object", "array") or "[]" in path or path == ".model.uri":
            continue
        value: Any = defaults
        for name in path.strip(".").split("."):
            value = value[name]
        said = str(value).lower() if isinstance(value, bool) else str(value)
        assert value == "" or f"Default: {said}." in node["description"], path


def test_rules_judge_absent_fields_by_their_defaults() -> None:
    found = InferenceServiceSpec(model=ModelSpec(uri="pvc://models/tiny"), autoscaling=Autoscaling(), roles=ROLES)
    defaults = found.model_dump(by_alias=True)
    parts = {"": defaults, **{name: part for name, part in defaults.items() if isinstance(part, dict)}}
    parts["prefill"] = defaults["roles"]["prefill"]
    parts["accelerator"] = defaults["resources"]["accelerator"]
    checked = 0
    for path, node in _walk(_schema()["properties"]["spec"]):
        part = parts.get(path.rsplit(".", 1)[-1], {})
        for rule in node.get("x-kubernetes-validations", []):
            for field, value in re.findall(r"self\.\?(\w+)\.orValue\((.*?)\)", rule["rule"]):
                checked += 1
                assert part[field] == yaml.safe_load(value), (path, rule)
    assert checked >= 12


def test_names_are_in_camel_case_and_booleans_are_no_enums_in_disguise() -> None:
    for path, _ in _nodes():
        name = path.rsplit(".", 1)[-1].removesuffix("[]")
        assert name.isidentifier(), path
        assert name[:1].islower(), path
        assert "_" not in name, path


def test_rules_carry_messages_and_paths() -> None:
    found = [(node, rule) for _, node in _nodes() for rule in node.get("x-kubernetes-validations", [])]
    assert len(found) >= 12
    for node, rule in found:
        assert len(rule["message"]) > 20
        field = rule["fieldPath"].removeprefix(".")
        assert field in node["properties"], rule


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


def test_no_rule_matches_a_text_whose_length_the_api_server_does_not_know() -> None:
    """It estimates what a rule may cost, and refuses a definition for `orValue('…').matches(…)`."""
    rules = [rule["rule"] for _, node in _nodes() for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) > 20
    assert [rule for rule in rules if re.search(r"orValue\([^)]*\)\.matches\(", rule)] == []
