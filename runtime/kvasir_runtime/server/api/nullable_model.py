"""The base of the parts of bodies: null means absent at every depth, as it does for a body's own fields."""

from typing import Any

from pydantic import ConfigDict, model_validator

from kvasir_runtime.frontend.protocol.validation import StrictModel


def null_is_absent(schema: dict[str, Any]) -> None:
    """The schema of a part says so too: an unknown field is accepted when it is null."""
    if schema.get("additionalProperties") is False:
        schema["additionalProperties"] = {"type": "null"}


class NullableModel(StrictModel):
    """A part of a body."""

    model_config = ConfigDict(json_schema_extra=null_is_absent)

    @model_validator(mode="before")
    @classmethod
    def _said(cls, value: Any) -> Any:
        return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value
