"""Reads container logs as the kubelet API serves them: last lines, since a time, following. For `server` and `worker`.

A log line is `2026-01-02T03:04:05.678901234Z stdout F text`, as `launch.py` writes it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What of a log is wanted. since: an RFC 3339 time in UTC, empty for all; tail, limit_bytes: None for all."""

    timestamps: bool = False
    since: str = ""
    tail: int | None = None
    limit_bytes: int | None = None


def shown(line: bytes, wish: Wish) -> bytes:
    """One stored line as it is shown; empty when it is before `since`. A partial line gets no line end."""
    stamp, _, rest = line.partition(b" ")
    _, _, rest = rest.partition(b" ")
    flag, _, text = rest.partition(b" ")
    if wish.since and stamp.decode() < wish.since:
        return b""
    ended = b"" if flag == b"P" else b"\n"
    return (stamp + b" " if wish.timestamps else b"") + text + ended


def read(path: Path, wish: Wish) -> bytes:
    """The log so far. FileNotFoundError when the container wrote none."""
    return _render((_older(path) + path.read_bytes()).split(b"\n"), wish)


def last_words(path: Path, *, limit_bytes: int = 2048, num_lines: int = 80) -> str:
    """The end of a log, as a termination message may quote it."""
    try:
        return read(path, Wish(tail=num_lines))[-limit_bytes:].decode(errors="replace").strip()
    except FileNotFoundError:
        return ""


async def follow(path: Path, wish: Wish, ended: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log so far, then what is added, until `ended` says that nothing will be."""
    file = path.open("rb")
    *lines, rest = (_older(path) + file.read()).split(b"\n")
    yield _render(lines, wish)
    try:
        while True:
            over = ended()
            while chunk := file.read(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                yield b"".join(shown(line, wish) for line in lines if line)
            if over:
                return
            if path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino:
                file.close()
                file = path.open("rb")
            await asyncio.sleep(POLL_S)
    finally:
        file.close()


def _render(lines: list[bytes], wish: Wish) -> bytes:
    whole = [line for line in lines if line]
    if wish.tail is not None:
        whole = whole[len(whole) - min(wish.tail, len(whole)) :]
    text = b"".join(shown(line, wish) for line in whole)
    return text if wish.limit_bytes is None else text[: wish.limit_bytes]


def _older(path: Path) -> bytes:
    """What was put aside when the log grew too long."""
    try:
        return path.with_name(path.name + ".1").read_bytes()
    except FileNotFoundError:
        return b""
