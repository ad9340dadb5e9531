"""A recording of everything that the scheduler was told and answered, so that a step can be looked at again.

A file of frames, each a little-endian length of four bytes and a record in msgpack. Written by the loop when asked to,
read by the replay. A file that ends in the middle of a frame is that of a process that died; it is read up to there.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import Plan, Results
from kvasir_runtime.wire import Abort, Inject, Submit

_LENGTH = struct.Struct("<I")


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """First record: the limits of the scheduler."""

    limits: Limits


class Heard(msgspec.Struct, frozen=True, tag="heard"):
    """A message was given to the scheduler at a time in seconds."""

    now: float
    message: Submit | Abort | Inject


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """The scheduler was asked for a plan and answered."""

    now: float
    plan: Plan | None


class Collected(msgspec.Struct, frozen=True, tag="collected"):
    """Results were committed."""

    now: float
    results: Results


class Broke(msgspec.Struct, frozen=True, tag="broke"):
    """A step failed and everybody who ran was told."""

    now: float
    message: str


Record = Opened | Heard | Planned | Collected | Broke


class Trace(Protocol):
    """Where records go."""

    def add(self, record: Record) -> None:
        """Keep one."""


class NoTrace:
    """Keeps nothing."""

    def add(self, record: Record) -> None:
        """Forgets it."""


class TraceFile:
    """Appends every record to a file at once, so that a crash loses none."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._encoder = msgspec.msgpack.Encoder()

    def add(self, record: Record) -> None:
        """Write one."""
        frame = self._encoder.encode(record)
        self._file.write(_LENGTH.pack(len(frame)) + frame)
        self._file.flush()

    def close(self) -> None:
        """No record follows."""
        self._file.close()


def records(path: Path) -> Iterator[Record]:
    """All whole records of a file. Raises msgspec.MsgspecError for one that is none of ours."""
    decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            frame = file.read(length)
            if len(frame) < length:
                return
            yield decoder.decode(frame)
