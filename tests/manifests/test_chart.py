"""The Helm chart, rendered by the real Helm: what the kustomize base installs, and what each value changes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

ROOT = Path(__file__).parents[2]
BASE, CHART = ROOT / "manifests" / "base", ROOT / "manifests" / "chart"
HELM = Path(sys.executable).with_name("helm")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False, timeout=60)


def rendered(*arguments: str, namespace: str = "kvasir-system") -> dict[tuple[str, str], Any]:
    done = helm("template", "kvasir", str(CHART), "--namespace", namespace, *arguments)
    assert done.returncode == 0, done.stderr
    found = [document for document in yaml.safe_load_all(done.stdout) if document]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def based() -> dict[tuple[str, str], Any]:
    """The base without its Namespace, which Helm makes by --create-namespace, and with the chart's images."""
    files = [path for part in ("operator", "gateway", "policies") for path in sorted((BASE / part).glob("*.yaml"))]
    files += sorted((ROOT / "crds").glob("*.yaml"))
    found = [d for path in files if path.name != "kustomization.yaml" for d in yaml.safe_load_all(path.read_text())]
    return {(document["kind"], document["metadata"]["name"]): document for document in found}


def tagged(document: Any) -> Any:
    """Images as a chart of this version names them."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    text = json.dumps(document)
    for image in ("operator", "gateway"):
        text = text.replace(f'"image": "kvasir-{image}"', f'"image": "kvasir-{image}:{version}"')
    for image in ("runtime-cpu", "runtime"):
        text = text.replace(f'image={"kvasir-" + image}"', f'image=kvasir-{image}:{version}"')
        text = text.replace(f'cpu=kvasir-{image}"', f'cpu=kvasir-{image}:{version}"')
    return json.loads(text)


def test_the_chart_installs_what_the_base_installs() -> None:
    chart, base = rendered(), based()
    assert set(chart) == set(base)
    for name, document in base.items():
        made = chart[name]
        if name[0] == "CustomResourceDefinition":
            assert made["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert made == tagged(document), name


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def container(found: dict[tuple[str, str], Any], name: str, number: int = 0) -> Any:
    return found["Deployment", name]["spec"]["template"]["spec"]["containers"][number]


def test_values_reach_their_places() -> None:
    found = rendered(
        "--set", "images.registry=registry.example/team/,images.tag=v9",
        "--set", "operator.replicas=1,gateway.replicas=5",
        "--set", "operator.allowModelDirs={/srv/a,/srv/b},operator.extraArgs={--verbose}",
        "--set", "gateway.picker.extraArgs={--reading-period=2},gateway.envoy.image=mirror/envoy:1",
        "--set", "operator.resources.limits.memory=1Gi,crds.install=false",
        namespace="home",
    )  # fmt: skip
    operator, envoy, picker = container(found, "kvasir-operator"), container(found, "kvasir-gateway"), None
    picker = container(found, "kvasir-gateway", 1)
    assert operator["image"] == "registry.example/team/kvasir-operator:v9"
    assert "--runtime-image=registry.example/team/kvasir-runtime:v9" in operator["args"]
    assert operator["args"][-3:] == ["--allow-model-dir=/srv/a", "--allow-model-dir=/srv/b", "--verbose"]
    assert "--gateway-url=http://kvasir-gateway.home" in operator["args"]
    assert operator["resources"]["limits"] == {"memory": "1Gi"}
    assert (envoy["image"], picker["args"][-1]) == ("mirror/envoy:1", "--reading-period=2")
    assert found["Deployment", "kvasir-operator"]["spec"]["replicas"] == 1
    assert found["Deployment", "kvasir-gateway"]["spec"]["replicas"] == 5
    assert not [name for name in found if name[0] == "CustomResourceDefinition"]
    assert {d["metadata"]["namespace"] for d in found.values() if "namespace" in d["metadata"]} == {"home"}
    assert all(s["namespace"] == "home" for d in found.values() for s in d.get("subjects", ()))


def test_nothing_names_another_namespace_than_that_of_the_release() -> None:
    """Advice of alerts is a command that its reader runs as it is."""
    switches = [part for value in ("monitoring", "networkPolicies") for part in ("--set", f"{value}.enabled=true")]
    found = rendered(*switches, namespace="home")
    assert [key for key, document in found.items() if "kvasir-system" in json.dumps(document)] == []
    assert "kubectl -n home get pods,lease" in json.dumps(found["PrometheusRule", "kvasir"])


def test_one_namespace_gets_rights_in_that_namespace_alone() -> None:
    found = rendered("--set", "watchNamespace=team", namespace="team")
    assert "--namespace=team" in container(found, "kvasir-operator")["args"]
    assert "--namespace=team" in container(found, "kvasir-gateway", 1)["args"]
    bound = {name for kind, name in found if kind == "ClusterRoleBinding"}
    assert bound == {"kvasir-operator-cluster"}
    rules = found["ClusterRole", "kvasir-operator-cluster"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["acceleratorclasses"], ["list", "watch"]),
        (["nodes"], ["get"]),
    ]
    narrow = [d for (kind, name), d in found.items() if kind == "RoleBinding" and name != "kvasir-operator-lease"]
    assert {d["metadata"]["namespace"] for d in narrow} == {"team"}
    assert {d["roleRef"]["name"] for d in narrow} == {"kvasir-operator", "kvasir-gateway"}


def leaves(node: Any, path: str = "") -> dict[str, Any]:
    """Schema of every value that is set as one, by its path."""
    if "properties" not in node:
        return {path: node}
    assert node["additionalProperties"] is False, f"{path} takes anything"
    return {
        p: s
        for name, child in node["properties"].items()
        for p, s in leaves(child, f"{path}.{name}".strip(".")).items()
    }


SCHEMA = json.loads((CHART / "values.schema.json").read_text())
LEAVES = leaves(SCHEMA)
VALIDATOR = Draft7Validator(SCHEMA)


def test_every_value_has_its_schema_and_words() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    given = {path for path in LEAVES if _at(values, path) is not None}
    assert given == set(LEAVES) - {"global"}
    assert [path for path, schema in LEAVES.items() if len(schema.get("description", "")) < 20] == []
    assert list(VALIDATOR.iter_errors(values)) == []


@pytest.mark.parametrize("path", sorted(set(LEAVES) - {"global"}))
def test_no_value_takes_another_type(path: str) -> None:
    """Numbers for words, words for numbers, an object for a list, and a word for an object's amount."""
    wrong: dict[str, Any] = {
        "string": 7,
        "integer": "many",
        "boolean": "yes",
        "array": {"a": "b"},
        "object": {"cpu": "a lot"},
    }
    value: Any = wrong[LEAVES[path]["type"]]
    for part in reversed(path.split(".")):
        value = {part: value}
    errors = list(VALIDATOR.iter_errors(value))
    assert [".".join(map(str, error.absolute_path)).startswith(path) for error in errors] == [True]


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("operator.resources.limits.memory=lots", "memory"),
        ("operator.replica=2", "operator"),
        ("operator.replicas=0", "operator.replicas"),
        ("images.registry=registry.example", "images.registry"),
        ("operator.allowModelDirs={models}", "operator.allowModelDirs"),
        ("unknown=1", "unknown"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(value: str, place: str) -> None:
    done = helm("template", "kvasir", str(CHART), "--set", value)
    assert done.returncode != 0
    assert place.rsplit(".", maxsplit=1)[-1] in done.stderr
