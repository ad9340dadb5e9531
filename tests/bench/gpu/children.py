"""Runs one section as a process: reads its cells from a pipe as they come, and ends it when its time is over."""

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from bench.servers import end_group

PIPE: Final = "KVASIR_BENCH_PIPE"
GRACE_S: Final = 15.0
"""Past its limit, for a cell that is nearly done: a section asks itself before each how much time is left."""
PATIENCE_S: Final = 25.0
"""For a section that was told to stop and has a server to stop itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """said: done, or what went wrong in one line."""

    said: str


def ended(
    command: Sequence[str],
    limit_s: float,
    on_line: Callable[[str], None],
    env: Mapping[str, str],
    grace_s: float = GRACE_S,
) -> Ended:
    """Run to the end, or to the limit. on_line is called for each line on the pipe, in one other thread.

    The process has a session of its own, so that servers which it started end with it.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=(writing,),
                start_new_session=True,
                env={**os.environ, **env, PIPE: str(writing)},
            )
        finally:
            os.close(writing)
        reader = threading.Thread(target=_read, args=(lines, on_line), daemon=True)
        reader.start()
        try:
            code = process.wait(limit_s + grace_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process, PATIENCE_S)
        reader.join(5)
        errors.seek(0)
        said = " ".join(errors.read().decode(errors="replace").split())[-500:]
    if code is None:
        return Ended(said="cut: the time was over")
    return Ended(said="done") if code == 0 else Ended(said=f"failed with {code}: ...{said}")


def _read(lines: TextIO, on_line: Callable[[str], None]) -> None:
    for line in lines:
        on_line(line)
