"""Reads a request's body within limits of size, time and type, before anything looks inside.

Called by the routes that take a body. A client decides neither how much memory nor how long a connection it gets.
"""

import asyncio
from typing import Final

from starlette.requests import ClientDisconnect, Request

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused

BODY_TIMEOUT_S: Final = 60.0


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises Refused: 413 over the limit, 415 for another type, 408 when it does not come."""
    _check_headers(request, limit_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                size += len(part)
                if size > limit_bytes:
                    raise Refused(openai_errors.body_too_large(limit_bytes))
                parts.append(part)
    except TimeoutError as error:
        message = f"The body did not arrive within {BODY_TIMEOUT_S:g} s."
        raise Refused(openai_errors.invalid(message, code="body_timeout")) from error
    except ClientDisconnect as error:
        raise Refused(openai_errors.invalid("The client closed the connection.")) from error
    return b"".join(parts)


def _check_headers(request: Request, limit_bytes: int) -> None:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"The body must be application/json, not {openai_errors.quoted(kind)}."
        raise Refused(openai_errors.invalid(message, code="unsupported_media_type"))
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        message = "A compressed body is not supported."
        raise Refused(openai_errors.invalid(message, code="unsupported_media_type"))
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length) > limit_bytes:
        raise Refused(openai_errors.body_too_large(limit_bytes))
