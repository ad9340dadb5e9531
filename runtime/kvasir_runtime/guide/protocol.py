"""Messages between the API process and the worker: frames of msgpack over the worker's standard streams.

Light, since the API process imports it: nothing here loads llguidance.
"""

import struct
from typing import Final

import msgspec

from kvasir_runtime.wire import Grammar

HEAD: Final = struct.Struct("<I")
LOADED: Final = -1
CPU_S: Final = 3
WALL_S: Final = 40.0
MEMORY_BYTES: Final = 256 << 20
"""What trying out one grammar may take; the wall clock is for a machine that is busy with other things."""


class Verdict(msgspec.Struct, frozen=True):
    """error: why a grammar is refused, "" if it is not. grammar: what is sent to the engine in its place."""

    error: str = ""
    grammar: Grammar | None = None


class VerdictRequest(msgspec.Struct, frozen=True):
    """number: of the request, for its reply."""

    number: int
    grammar: Grammar


class VerdictReply(msgspec.Struct, frozen=True):
    """The answer to a request; number LOADED reports that the vocabulary is loaded, or in error why it is not."""

    number: int
    verdict: Verdict
    seconds: float = 0.0


def framed(message: VerdictRequest | VerdictReply) -> bytes:
    """A message behind its length."""
    encoded = msgspec.msgpack.encode(message)
    return HEAD.pack(len(encoded)) + encoded
