"""JSON responses by msgspec, for the small documents of both ports, and bodies as /openapi.json shows them."""

from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema
from starlette.responses import Response


def json_response(document: Any, *, status: int = 200) -> Response:
    """A response with the encoded document."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


class InputSchema(GenerateJsonSchema):
    """What a body may hold, which is more than what it becomes.

    A value with a validator of its own is anything, unless the validator has json_schema_input_type; a model stays one.
    """

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Called by pydantic for each BeforeValidator."""
        stated = schema.get("json_schema_input_schema")
        if stated is not None:
            return self.generate_inner(stated)
        inner = schema["schema"]
        return self.generate_inner(inner) if inner["type"] in {"model", "definition-ref", "model-fields"} else {}


def body_schema(body: type[BaseModel]) -> dict[str, Any]:
    """For /openapi.json: the routes read their bodies themselves."""
    schema = body.model_json_schema(schema_generator=InputSchema)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
