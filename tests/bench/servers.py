"""Starts one server of a measurement, watches what it takes of the machine, and stops it with all its children."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

READY_S: Final = 300.0
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True, kw_only=True)
class Running:
    """A server that is ready. start_s: from its start until it said so."""

    process: subprocess.Popen[bytes]
    start_s: float


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was seen while something ran. foreign_cores: what other processes than server and client used."""

    peak_rss: int = 0
    server_cores: float = 0.0
    foreign_cores: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(command: Sequence[str], ready_url: str, log: Path, env: dict[str, str]) -> Iterator[Running]:
    """The server, ready. Raises RuntimeError with the end of its log when it is not.

    SIGTERM to this process ends the server too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, env=os.environ | env
        )
    try:
        while not _answers(ready_url):
            if process.poll() is not None or time.monotonic() - started > READY_S:
                raise RuntimeError(f"{command[0]} is not ready: ...{log.read_text(errors='replace')[-600:]}")
            time.sleep(0.02)
        yield Running(process=process, start_s=time.monotonic() - started)
    finally:
        end_group(process)


@contextmanager
def watching(process: subprocess.Popen[bytes]) -> Iterator[Watched]:
    """Samples memory ten times a second; processor time is taken at both ends."""
    seen = Watched()
    thread = threading.Thread(target=_sample, args=(process.pid, seen), daemon=True)
    before, used, at = _machine_s(), tree_s(process.pid), time.monotonic()
    children = os.times()
    thread.start()
    try:
        yield seen
    finally:
        seen.ended.set()
        thread.join()
        wall, after = time.monotonic() - at, os.times()
        used = tree_s(process.pid) - used
        own = sum(after[:4]) - sum(children[:4])
        seen.server_cores = used / wall
        seen.foreign_cores = max(0.0, (_machine_s() - before - used - own) / wall)


def _sample(pid: int, seen: Watched) -> None:
    while not seen.ended.wait(0.1):
        seen.peak_rss = max(seen.peak_rss, sum(_rss(one) for one in tree(pid)))


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except OSError:
        return 0


def peak_rss(pid: int) -> int:
    """Bytes: the most that a process and all below it ever held, each by itself."""
    return sum(_peak(one) for one in tree(pid))


def bare_import() -> tuple[float, int]:
    """Seconds and peak bytes of a process that only imports torch; of the second one, whose files are in memory."""
    for _ in range(2):
        started = time.monotonic()
        program = [sys.executable, "-c", "import torch; print(flush=True); input()"]
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        seconds, peak = time.monotonic() - started, _peak(process.pid)
        process.communicate(b"\n")
    return seconds, peak


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def tree_s(pid: int) -> float:
    """Processor seconds that a process and all below it have used."""
    total = 0
    for one in tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return total / TICKS


def _machine_s() -> float:
    """Processor seconds that all processes used since boot, stolen time included."""
    fields = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def end_group(process: subprocess.Popen[bytes], patience_s: float = 20.0) -> None:
    """Ask a process and all it started to end, then kill them. The group is its own: it got a session at its start."""
    for one, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, one)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.wait(5)
