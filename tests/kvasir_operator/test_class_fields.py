"""Every field of an AcceleratorClass has an effect: changing it changes a pod, a choice, a forecast or a verdict."""

from typing import Any

import pytest

from fakes.manifests import service
from fakes.models import words
from kvasir_api import crd
from kvasir_api.status import ModelStatus
from kvasir_operator.desired.accelerator import choice, forecast, speed
from kvasir_operator.desired.inspection import look
from kvasir_operator.desired.template import template
from kvasir_operator.observed.settings import Settings
from kvasir_operator.observed.world import observed

SETTINGS = Settings(runtime_image="gpu:1", runtime_image_cpu="cpu:1", model_dirs=("/srv",))
TAINT = {"key": "a", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}
OTHER = {"metadata": {"name": "other"}, "spec": {"memory": "80Gi", "pricePerHour": 5}}
SPEED = {"memoryGigabytesPerSecond": 3350, "fp16Teraflops": 989}
PATCH = {"op": "add", "path": "/spec/enableServiceLinks", "value": True}
WHOLE = ("memoryGigabytesPerSecond", "fp16Teraflops", "fp8Teraflops", "degradedBelowPercent")
"""Fields that have an effect only beside others: their cases give the whole object."""
CASES: dict[str, tuple[Any, Any]] = {
    "resourceName": ("nvidia.com/gpu", "amd.com/gpu"),
    "memory": ("24Gi", "80Gi"),
    "pricePerHour": (4, 6),
    "spot": (False, True),
    "runtimeImage": ("a:1", "a:2"),
    "compute.capability": ("", "8.0"),
    "compute.memoryGigabytesPerSecond": (SPEED, {**SPEED, "memoryGigabytesPerSecond": 2000}),
    "compute.fp16Teraflops": (SPEED, {**SPEED, "fp16Teraflops": 300}),
    "compute.fp8Teraflops": (SPEED, {**SPEED, "fp8Teraflops": 1979}),
    "compute.degradedBelowPercent": (SPEED, {**SPEED, "degradedBelowPercent": 90}),
    "podPatches[].op": ([PATCH], [{**PATCH, "op": "remove"}]),
    "podPatches[].path": ([PATCH], [{**PATCH, "path": "/spec/hostIPC"}]),
    "podPatches[].value": ([PATCH], [{**PATCH, "value": False}]),
    "pod.nodeSelector": ({}, {"gpu": "l4"}),
    "pod.tolerations[].key": ([TAINT], [{**TAINT, "key": "b"}]),
    "pod.tolerations[].operator": ([{**TAINT, "value": ""}], [{**TAINT, "value": "", "operator": "Exists"}]),
    "pod.tolerations[].value": ([TAINT], [{**TAINT, "value": "w"}]),
    "pod.tolerations[].effect": ([TAINT], [{**TAINT, "effect": ""}]),
    "pod.tolerations[].tolerationSeconds": ([TAINT], [{**TAINT, "tolerationSeconds": 6}]),
    "pod.runtimeClassName": ("nvidia", "other"),
    "pod.priorityClassName": ("high", "low"),
    "pod.annotations": ({}, {"a": "b"}),
    "pod.env[].name": ([{"name": "A"}], [{"name": "B"}]),
    "pod.env[].value": ([{"name": "A", "value": "1"}], [{"name": "A", "value": "2"}]),
}


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
    spec: dict[str, Any] = {"memory": "80Gi", "pricePerHour": 4}
    *parents, last = path.partition("[]")[0].split(".")
    if last in WHOLE:
        last = parents.pop()
    here = spec
    for parent in parents:
        here = here.setdefault(parent, {})
    here[last] = value
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
    looked = look(seen, SETTINGS, wanted=1, waited_s=0.0, now=0.0, time="now")
    return template(seen, "rev", SETTINGS), choice(seen).name, forecast(seen), speed(seen)[1], looked


def test_every_field_has_a_case() -> None:
    schema = crd.accelerators()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert leaves(schema["properties"]["spec"]) == set(CASES)


@pytest.mark.parametrize("path", sorted(CASES))
def test_changing_the_field_changes_something(path: str) -> None:
    one, other = CASES[path]
    assert effects(path, one) == effects(path, one)
    assert effects(path, one) != effects(path, other)
