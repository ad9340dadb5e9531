"""Server-sent events: JSON documents as the lines that a stream sends."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

STREAM_TYPE: Final = b"text/event-stream; charset=utf-8"
COMMENT: Final = b": waiting\n\n"
"""A sign of life within a stream, which clients skip."""
COMMENT_CHARACTERS: Final = 8192
"""Of a text in one line: some clients bound their lines to 64 KiB."""
encode = msgspec.json.Encoder().encode


def comments(name: str, text: str) -> bytes:
    """A long text as lines that clients skip, each of them ": NAME PART"."""
    parts = [text[start : start + COMMENT_CHARACTERS] for start in range(0, len(text), COMMENT_CHARACTERS)]
    return b"".join(f": {name} {part}\n".encode() for part in parts) + b"\n"


def unnamed(document: bytes) -> bytes:
    """An event of an encoded document."""
    return b"data: " + document + b"\n\n"


def named(kind: str, document: Mapping[str, Any]) -> bytes:
    """A named event; the document gets its name as type."""
    return b"event: " + kind.encode() + b"\ndata: " + encode({"type": kind, **document}) + b"\n\n"
