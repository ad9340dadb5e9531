"""Base class and string types of the CRDs' declarations; the patterns are those of Kubernetes.

Used by service.py, rollout.py, status.py and accelerator.py.
"""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

LABEL_PATTERN: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
KEY_PATTERN: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
SHORT_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
SERVED_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"
DNS_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]{1,3})?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
CPU_PATTERN: Final = r"^[0-9]+(\.[0-9]{1,3})?m?$"

Quantity = Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN, max_length=20)]
Cpu = Annotated[str, StringConstraints(pattern=CPU_PATTERN, max_length=20)]
LabelValue = Annotated[str, StringConstraints(pattern=LABEL_PATTERN, max_length=63)]
NoteValue = Annotated[str, StringConstraints(max_length=1024)]
ServedName = Annotated[str, StringConstraints(pattern=SERVED_PATTERN, min_length=1, max_length=253)]
LabelKey = Annotated[str, StringConstraints(pattern=KEY_PATTERN, max_length=316)]
ShortName = Annotated[str, StringConstraints(pattern=SHORT_PATTERN, min_length=1, max_length=63)]
Name = Annotated[str, StringConstraints(pattern=DNS_PATTERN, min_length=1, max_length=253)]


class CrdObject(BaseModel):
    """Base of all objects in a CRD: camelCase in YAML, snake_case in Python; unknown fields are ignored, as the API server prunes them."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


def validation_rules(*pairs: tuple[str, str] | tuple[str, str, str]) -> ConfigDict:
    """CEL rules of an object: (rule, message) or (rule, message, field path)."""
    written: list[Any] = [
        {"rule": p[0], "message": p[1], **({"fieldPath": p[2]} if len(p) == 3 else {})} for p in pairs
    ]
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": written})
