"""Reads container logs as the kubelet API serves them: last lines, since a time, following.

A log line is `2026-01-02T03:04:05.678901234Z stdout F text`, as `container_shim.py` writes it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Which part of a log to return. since: an RFC 3339 time in UTC, empty for all; tail, limit_bytes: None for all."""

    timestamps: bool = False
    since: str = ""
    tail: int | None = None
    limit_bytes: int | None = None


def rendered(line: bytes, options: LogOptions) -> bytes:
    """One stored line as it is returned; empty when it is before `since`. A partial line gets no line end."""
    stamp, _, rest = line.partition(b" ")
    _, _, rest = rest.partition(b" ")
    flag, _, text = rest.partition(b" ")
    if options.since and stamp.decode() < options.since:
        return b""
    ended = b"" if flag == b"P" else b"\n"
    return (stamp + b" " if options.timestamps else b"") + text + ended


def read(path: Path, options: LogOptions) -> bytes:
    """The log so far. FileNotFoundError when the container wrote none."""
    return _render((_older(path) + path.read_bytes()).split(b"\n"), options)


def end_of_log(path: Path, *, limit_bytes: int = 2048, num_lines: int = 80) -> str:
    """The end of a log, as a termination message may quote it."""
    try:
        return read(path, LogOptions(tail=num_lines))[-limit_bytes:].decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


async def follow(path: Path, options: LogOptions, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log so far, then what is added, until `ended` returns True."""
    file = path.open("rb")
    *lines, rest = (_older(path) + file.read()).split(b"\n")
    yield _render(lines, options)
    try:
        while True:
            over = ended()
            while chunk := file.read(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                yield b"".join(rendered(line, options) for line in lines if line)
            if over:
                return
            if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = path.open("rb")
            await asyncio.sleep(POLL_S)
    finally:
        file.close()


def _render(lines: list[bytes], options: LogOptions) -> bytes:
    whole = [line for line in lines if line]
    if options.tail is not None:
        whole = whole[len(whole) - min(options.tail, len(whole)) :]
    text = b"".join(rendered(line, options) for line in whole)
    return text if options.limit_bytes is None else text[: options.limit_bytes]


def _older(path: Path) -> bytes:
    """The rotated part of the log."""
    try:
        return path.with_name(path.name + ".1").read_bytes()
    except FileNotFoundError:
        return b""
