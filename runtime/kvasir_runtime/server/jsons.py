"""JSON responses by msgspec, for the small documents of both ports."""

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(document: Any, *, status: int = 200) -> Response:
    """A response with the encoded document."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")
