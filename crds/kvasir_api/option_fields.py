"""How a field of options or of a custom resource is declared: with what help, schema and docs need."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class OptionsBase(BaseModel):
    """Base of all option models: frozen, strict about unknown names, camelCase in YAML, snake_case in Python."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


def option(
    default: Any,
    description: str,
    *,
    unit: str = "",
    flag: str = "",
    metavar: str = "",
    date_time: bool = False,
    list_type: Literal["", "atomic", "set"] = "",
    list_key: str = "",
    **bounds: Any,
) -> Any:
    """A field with what help, schema and docs need. flag overrides the name derived from the field's.

    list_type, list_key: how appliers merge a list; without them it is replaced whole.
    """
    extra = {"x-unit": unit, "x-flag": flag, "x-metavar": metavar, "format": "date-time" if date_time else ""}
    merged: dict[str, Any] = {"x-kubernetes-list-type": "map" if list_key else list_type}
    merged["x-kubernetes-list-map-keys"] = [list_key] if list_key else []
    said = {k: v for k, v in {**extra, **merged}.items() if v}
    return Field(default, description=description, json_schema_extra=said, **bounds)
