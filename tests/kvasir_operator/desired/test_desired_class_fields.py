"""Every field of an AcceleratorClass has an effect: changing it changes a pod, a choice, a forecast or a verdict."""

from typing import Any

import pytest

from fakes.class_fields import CASES, with_value
from fakes.manifests import service
from fakes.models import words
from fakes.stages import pod_template, resolved
from kvasir_api import crd
from kvasir_api.status import ModelStatus
from kvasir_operator.desired.accelerator import placement
from kvasir_operator.desired.inspection import inspection_plan
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(runtime_image="gpu:1", runtime_image_cpu="cpu:1", model_dirs=("/srv",))
OTHER = {"metadata": {"name": "other"}, "spec": {"memory": "80Gi", "pricePerHour": 5}}


def leaves(node: dict[str, Any], path: str = "") -> set[str]:
    found = set()
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        if child.get("type") == "array":
            found |= leaves(child["items"], f"{here}[]")
        elif "properties" in child:
            found |= leaves(child, here)
        else:
            found.add(here)
    return found


def effects(path: str, value: Any) -> tuple[Any, ...]:
    """What a service that would take the cheapest class that fits gets."""
    spec = with_value(path, value)
    obj = service(
        resources={"accelerator": {"count": 1, "minMemory": "20Gi"}},
        model={"uri": "file:///srv/a"},
        runtime={"quantization": "fp8"},
    )
    status = ModelStatus(uri="file:///srv/a", facts=words()).model_dump(by_alias=True)
    classes = [{"metadata": {"name": "mine"}, "spec": spec}, OTHER]
    seen = observed(
        obj | {"status": {"model": status}}, revisions=(), deployments=(), replicas=(), svc=None, classes=classes
    )
    looked = inspection_plan(resolved(seen, SETTINGS), SETTINGS, wanted=1, written=True, now=0.0)
    return (
        pod_template(seen, "rev", SETTINGS),
        placement(seen).choice.name,
        placement(seen).forecast,
        placement(seen).slow_below_percent,
        looked,
    )


def test_every_field_has_a_case() -> None:
    schema = crd.accelerators()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert leaves(schema["properties"]["spec"]) == set(CASES)


@pytest.mark.parametrize("path", sorted(CASES))
def test_changing_the_field_changes_something(path: str) -> None:
    one, other = CASES[path]
    assert effects(path, one) == effects(path, one)
    assert effects(path, one) != effects(path, other)
