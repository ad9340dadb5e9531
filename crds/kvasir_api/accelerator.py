"""AcceleratorClass `serving.kvasir.dev/v1alpha1`: what the administrator says of one kind of accelerator node.

Cluster-scoped, so that whoever writes an InferenceService can name a class but not choose an image, a runtime class or
a priority. The CRD is generated from these models; the operator parses objects into them.
"""

from typing import Annotated

from pydantic import StringConstraints

from kvasir_api.options import option
from kvasir_api.part import LabelKey, LabelValue, Name, NoteValue, Part, Quantity
from kvasir_api.service import Toleration

Image = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=512)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)]


class Variable(Part):
    """A variable of the runtime's environment."""

    name: VariableName = option(..., "Name of the variable.")
    value: str = option("", "Its value, taken as it is.", max_length=1024)


class ClassPod(Part):
    """What pods of the class get beside what the operator gives every pod."""

    node_selector: dict[LabelKey, LabelValue] = option(
        {}, "Labels that a node of the class has; a service may add others, not change these.", max_length=32
    )
    tolerations: list[Toleration] = option([], "Taints of the class's nodes.", max_length=32)
    runtime_class_name: Name | None = option(None, "RuntimeClass of the pods, such as nvidia.")
    priority_class_name: Name | None = option(None, "PriorityClass of the pods.")
    annotations: dict[LabelKey, NoteValue] = option({}, "Annotations of the pods.", max_length=32)
    env: list[Variable] = option(
        [], "Variables of the runtime, for drivers and libraries of the class.", max_length=32, list_key="name"
    )


class AcceleratorClassSpec(Part):
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
    pod: ClassPod = option(ClassPod(), "What pods of the class get.")


class AcceleratorClass(Part):
    """One kind of accelerator node, as the administrator describes it; services name it or its properties."""

    spec: AcceleratorClassSpec = option(..., "What the class is.")
