"""What the modules of single keywords need of the rewriting, which calls them: Rewriter in rewrite.py."""

from collections.abc import Mapping
from typing import Protocol

from kvasir_runtime.guide.schemas.resources import LocatedSchema, SchemaPlace, SchemaResources
from kvasir_runtime.guide.schemas.unions import Schema


class Terms(Protocol):
    """Schemas in the words that llguidance compiles."""

    resources: SchemaResources
    loose: set[str]

    def positive(self, schema: Schema, place: SchemaPlace) -> Schema:
        """What a schema allows."""
        ...

    def negative(self, schema: Schema, place: SchemaPlace) -> Schema:
        """What a schema forbids, or less."""
        ...

    def reference(self, target: LocatedSchema, *, positive: bool) -> Schema:
        """The definition of a schema, or of its complement."""
        ...

    def targets(self, schema: Mapping[str, Schema], place: SchemaPlace) -> list[LocatedSchema]:
        """Where the references of a schema lead."""
        ...
