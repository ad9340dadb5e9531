"""The base of what surfaces' bodies are made of: null means absent at every depth, as it does for a body's fields."""

from typing import Any

from pydantic import model_validator

from kvasir_runtime.server.bodies import Strict


class Sparse(Strict):
    """A part of a body."""

    @model_validator(mode="before")
    @classmethod
    def _said(cls, value: Any) -> Any:
        return {name: one for name, one in value.items() if one is not None} if isinstance(value, dict) else value
