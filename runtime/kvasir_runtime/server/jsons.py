"""JSON responses by msgspec, for the small documents of both ports, and bodies as /openapi.json shows them."""

from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.responses import Response


def json_response(document: Any, *, status: int = 200) -> Response:
    """A response with the encoded document."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def body_schema(body: type[BaseModel]) -> dict[str, Any]:
    """For /openapi.json: the routes read their bodies themselves."""
    schema = body.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
