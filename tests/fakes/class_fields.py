"""Every field of an AcceleratorClass with two values that must not come to the same, without and with an API server."""

from typing import Any

TAINT = {"key": "a", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}
SPEED = {"memoryGigabytesPerSecond": 3350, "fp16Teraflops": 989}
PROBES = [f"/spec/containers/0/{probe}Probe/failureThreshold" for probe in ("liveness", "readiness")]
PATCH = {"op": "add", "path": PROBES[0], "value": 8}
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
    "podPatches[].path": ([PATCH], [{**PATCH, "path": PROBES[1]}]),
    "podPatches[].value": ([PATCH], [{**PATCH, "value": 7}]),
    "pod.nodeSelector": ({}, {"gpu": "l4"}),
    "pod.tolerations[].key": ([TAINT], [{**TAINT, "key": "b"}]),
    "pod.tolerations[].operator": ([{**TAINT, "value": ""}], [{**TAINT, "value": "", "operator": "Exists"}]),
    "pod.tolerations[].value": ([TAINT], [{**TAINT, "value": "w"}]),
    "pod.tolerations[].effect": ([{"key": "a"}], [{"key": "a", "effect": "NoSchedule"}]),
    "pod.tolerations[].tolerationSeconds": ([TAINT], [{**TAINT, "tolerationSeconds": 6}]),
    "pod.runtimeClassName": ("nvidia", "other"),
    "pod.priorityClassName": ("high", "low"),
    "pod.annotations": ({}, {"a": "b"}),
    "pod.env[].name": ([{"name": "A"}], [{"name": "B"}]),
    "pod.env[].value": ([{"name": "A", "value": "1"}], [{"name": "A", "value": "2"}]),
}


def with_value(path: str, value: Any) -> dict[str, Any]:
    """A class in which the field has that value; of a list, or of fields that need others, the whole is given."""
    spec: dict[str, Any] = {"memory": "80Gi", "pricePerHour": 4}
    *parents, last = path.partition("[]")[0].split(".")
    if last in WHOLE:
        last = parents.pop()
    here = spec
    for parent in parents:
        here = here.setdefault(parent, {})
    here[last] = value
    return spec
