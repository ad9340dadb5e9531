"""A recording of every call of the scheduler and its result, so that a step can be examined later.

A file of frames, each a little-endian length of four bytes and a record in msgpack. The loop writes it under `--trace`,
the replay reads it. A file that ends in the middle of a frame is that of a process that died; it is read up to there.
"""

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import HostChanges, StepFailure, StepPlan, StepResults
from kvasir_runtime.wire import Abort, Forget, Inject, Submit

_LENGTH = struct.Struct("<I")


class StartRecord(msgspec.Struct, frozen=True, tag="start"):
    """First record: the limits of the scheduler."""

    limits: Limits


class MessageRecord(msgspec.Struct, frozen=True, tag="message"):
    """A message was passed to the scheduler; now is in seconds."""

    now: float
    message: Submit | Abort | Inject | Forget


class PlanRecord(msgspec.Struct, frozen=True, tag="plan"):
    """The scheduler made a plan, or none."""

    now: float
    plan: StepPlan | None


class ResultsRecord(msgspec.Struct, frozen=True, tag="results"):
    """Results were committed."""

    now: float
    results: StepResults


class FailureRecord(msgspec.Struct, frozen=True, tag="failure"):
    """A step failed."""

    now: float
    failure: StepFailure


class HostRecord(msgspec.Struct, frozen=True, tag="host"):
    """The host holds other blocks than before."""

    changes: HostChanges


TraceRecord = StartRecord | MessageRecord | PlanRecord | ResultsRecord | FailureRecord | HostRecord


class Trace(Protocol):
    """Where records go."""

    def add(self, record: TraceRecord) -> None:
        """Keep one."""


class NoTrace:
    """Keeps nothing."""

    def add(self, record: TraceRecord) -> None:
        """Does nothing."""


class TraceFile:
    """Appends every record to a file at once, so that a crash loses none.

    Only its owner may read it: it has prompts, and the secret from which the hashes of their blocks begin.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(_opened(path), "wb")
        self._encoder = msgspec.msgpack.Encoder()

    def add(self, record: TraceRecord) -> None:
        """Write one."""
        frame = self._encoder.encode(record)
        self._file.write(_LENGTH.pack(len(frame)) + frame)
        self._file.flush()

    def close(self) -> None:
        """No record follows."""
        self._file.close()


def _opened(path: Path) -> int:
    """A descriptor of an empty file; one that is there already loses the permissions of others. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, 0o600)
    return descriptor


def records(path: Path) -> Iterator[TraceRecord]:
    """All whole records of a file. Raises msgspec.MsgspecError for one that is none of ours."""
    decoder: msgspec.msgpack.Decoder[TraceRecord] = msgspec.msgpack.Decoder(TraceRecord)
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            (length,) = _LENGTH.unpack(head)
            frame = file.read(length)
            if len(frame) < length:
                return
            yield decoder.decode(frame)
