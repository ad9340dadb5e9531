"""Server-sent events: JSON documents as the lines that a stream sends."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

STREAM_TYPE: Final = b"text/event-stream; charset=utf-8"
COMMENT: Final = b": waiting\n\n"
"""A sign of life within a stream, which clients skip."""
encode = msgspec.json.Encoder().encode


def unnamed(document: bytes) -> bytes:
    """An event of an encoded document."""
    return b"data: " + document + b"\n\n"


def named(kind: str, document: Mapping[str, Any]) -> bytes:
    """A named event; the document gets its name as type."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **document}) + b"\n\n"
