"""AcceleratorClass `serving.kvasir.dev/v1alpha1`: what the administrator says of one kind of accelerator node.

Cluster-scoped, so that the author of an InferenceService can name a class but not choose an image, a runtime class or
a priority. The CRD is generated from these models; the operator parses objects into them.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from kvasir_api.crd_types import CrdObject, LabelKey, LabelValue, Name, NoteValue, Quantity, validation_rules
from kvasir_api.option_fields import option
from kvasir_api.roofline import Card
from kvasir_api.service import Toleration

Image = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=512)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)]


class EnvVar(CrdObject):
    """A variable of the runtime's environment."""

    name: VariableName = option(..., "Name of the variable.")
    value: str = option("", "Its value, taken as it is.", max_length=1024)


class ClassPod(CrdObject):
    """What pods of the class get beside what the operator gives every pod."""

    node_selector: dict[LabelKey, LabelValue] = option(
        {}, "Labels that a node of the class has; a service may add others, not change these.", max_length=32
    )
    tolerations: list[Toleration] = option([], "Taints of the class's nodes.", max_length=32)
    runtime_class_name: Name | None = option(None, "RuntimeClass of the pods, such as nvidia.")
    priority_class_name: Name | None = option(None, "PriorityClass of the pods.")
    annotations: dict[LabelKey, NoteValue] = option({}, "Annotations of the pods.", max_length=32)
    env: list[EnvVar] = option(
        [], "Variables of the runtime, for drivers and libraries of the class.", max_length=32, list_key="name"
    )


class Compute(CrdObject):
    """What one device can do, as its vendor states it; of a slice of a card, what the slice can do."""

    model_config = validation_rules(
        (
            "(self.memoryGigabytesPerSecond == 0) == (self.fp16Teraflops == 0)",
            "compute.memoryGigabytesPerSecond and compute.fp16Teraflops are needed both: a step is bound by either",
            ".fp16Teraflops",
        ),
        (
            "self.fp8Teraflops == 0 || self.fp16Teraflops > 0",
            "compute.fp8Teraflops needs compute.fp16Teraflops beside it: not everything is computed in 8 bits",
            ".fp8Teraflops",
        ),
    )

    capability: str = option(
        "",
        "CUDA compute capability, such as 8.9: types that it lacks are refused before a device is taken; empty means unknown.",
        max_length=4,
        pattern=r"^([1-9][0-9]?\.[0-9])?$",
    )
    memory_gigabytes_per_second: int = option(
        0,
        "Bandwidth of the device's memory in units of 10^9 bytes, for example 3350 of an H100 SXM; 0 means unknown.",
        unit="GB/s",
        ge=0,
        le=1_000_000,
    )
    fp16_teraflops: int = option(
        0,
        "Dense tensor rate in 16 bits (FP16, BF16), for example 989 of an H100 SXM: half of what is stated with sparsity; 0 means unknown.",
        unit="TFLOP/s",
        ge=0,
        le=1_000_000,
    )
    fp8_teraflops: int = option(
        0,
        "Dense tensor rate in FP8, for example 1979 of an H100 SXM, which models in fp8 are forecast with; 0 where there is none.",
        unit="TFLOP/s",
        ge=0,
        le=1_000_000,
    )
    degraded_below_percent: int = option(
        40,
        "A replica that decodes for two minutes slower than this share of what memory and tensor rates allow makes its service Degraded; 0 never. "
        "The default leaves room for what a roofline leaves out; slower kernels, a throttled card or another program on it cost half and more.",
        unit="percent",
        ge=0,
        le=100,
    )

    def card(self) -> Card | None:
        """What forecasts reckon with; None where it was not declared."""
        if not (self.memory_gigabytes_per_second and self.fp16_teraflops):
            return None
        return Card(
            memory_bytes_per_s=self.memory_gigabytes_per_second * 10**9,
            flops_per_s=self.fp16_teraflops * 10**12,
            fp8_flops_per_s=self.fp8_teraflops * 10**12,
        )


class PodPatch(CrdObject):
    """One operation of a JSON Patch (RFC 6902) on the pod template."""

    model_config = validation_rules(
        (
            "self.path.startsWith('/spec/') || self.path.matches('^/metadata/(labels|annotations)(/|$)')",
            "podPatches change what is below /spec/, /metadata/labels or /metadata/annotations of the pod",
            ".path",
        ),
    )

    op: Literal["add", "replace", "remove", "test"] = option(
        ..., "What is done: add, replace or remove what is at the path, or test that it is the value."
    )
    path: str = option(
        ...,
        "Where, as a JSON Pointer (RFC 6901) into the pod template, for example /spec/hostIPC or /spec/containers/0/env/-; container 0 is the runtime.",
        min_length=1,
        max_length=512,
        pattern=r"^(/([^~/]|~[01])*)+$",
    )
    value: Any = Field(
        None,
        description="What is added, put in place or compared: anything that a pod may have there, without fractions; absent for remove.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class AcceleratorClassSpec(CrdObject):
    """One kind of accelerator."""

    resource_name: str = option(
        "nvidia.com/gpu",
        "Extended resource that the device plugin offers on these nodes.",
        max_length=253,
        pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
    )
    memory: Quantity = option(..., "Memory of one device; compared with a service's minMemory.", unit="bytes")
    price_per_hour: int = option(
        0,
        "Price of one device and hour, in whatever unit all classes share; the cheapest class that fits is taken.",
        ge=0,
        le=1_000_000_000,
    )
    spot: bool = option(False, "Nodes that may be taken away at short notice: taken only by services that allow it.")
    runtime_image: Image | None = option(None, "Runtime image of the class; default: the operator's.")
    compute: Compute = option(
        Compute(), "What one device can do: for forecasts of speed, and to tell replicas that fall behind."
    )
    pod: ClassPod = option(ClassPod(), "What pods of the class get.")
    pod_patches: list[PodPatch] = option(
        [],
        "Operations on the finished pod template of a replica, in order, for what pod has no field for. What the operator lives by cannot be changed; a patch that tries, or does not apply, is refused by its number.",
        max_length=32,
    )


OF_PODS: Final = {"resource_name", "runtime_image", "pod"}
"""Fields of a class that shape its pods, besides pod_patches."""


def pod_shape(spec: AcceleratorClassSpec) -> dict[str, Any]:
    """What of OF_PODS differs from the contract's defaults, as JSON."""
    return spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, include=OF_PODS)


class AcceleratorClass(CrdObject):
    """One kind of accelerator node, as the administrator describes it; services name it or its properties."""

    spec: AcceleratorClassSpec = option(..., "What the class is.")
