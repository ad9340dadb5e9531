"""The image of the runtime: which one a service gets, and what of it is its version."""

from typing import Final

from kvasir_api import names
from kvasir_api.accelerator import AcceleratorClassSpec
from kvasir_api.service import InferenceServiceSpec
from kvasir_kube.kinds import Json
from kvasir_operator.desired.fit import on_accelerator
from kvasir_operator.observed.settings import OperatorSettings

FOLLOW: Final = "Follow"
"""Value of spec.runtimeVersion: the operator's own image, also after an upgrade."""


def wanted_image(
    spec: InferenceServiceSpec, accelerator: AcceleratorClassSpec | None, settings: OperatorSettings
) -> str:
    """Of a new revision: the class's where it has one, else the operator's, with the tag that the spec pins."""
    if not on_accelerator(spec):
        image = settings.runtime_image_cpu
    elif accelerator is not None and accelerator.runtime_image:
        return accelerator.runtime_image
    else:
        image = settings.runtime_image
    version = spec.runtime_version
    return f"{_repository(image)}:{version}" if version not in ("", FOLLOW) else image


def runtime_image(template: Json) -> str:
    """Of the runtime's container in a pod template; empty where there is none."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((str(c.get("image") or "") for c in containers if c.get("name") == names.CONTAINER_RUNTIME), "")


def image_tag(image: str) -> str:
    """The tag of an image's name, empty without one. A colon before a slash belongs to a registry's port."""
    return image.partition("@")[0].removeprefix(_repository(image)).removeprefix(":")


def _repository(image: str) -> str:
    """Without tag and digest."""
    path, slash, name = image.partition("@")[0].rpartition("/")
    return path + slash + name.partition(":")[0]
