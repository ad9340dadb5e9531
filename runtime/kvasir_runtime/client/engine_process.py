"""Starts and ends the engine process, and keeps the private directory of the socket between the two.

Owned by the server's process. The engine is in a session of its own, so that a ctrl-C in the terminal reaches only the
API process, which then ends the engine; the engine ends too when its standard input closes.
"""

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvasir_runtime.engine_args import XID_NOTE, EngineArgs

ENGINE_COMMAND = (sys.executable, "-m", "kvasir_runtime.engine_main")
KILL_AFTER_S = 5.0
BUSY_STATES = (b"R", b"D")
"""Running or runnable, and in an uninterruptible wait: the letters of proc(5)."""


class EngineProcess:
    """One engine process. command: program and arguments, replaced by tests."""

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        self._command = tuple(command)
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.began_s = 0.0  # on the monotonic clock; 0 before it was started

    @property
    def address(self) -> str:
        """Where the engine's socket is, in a directory that is made at the first use."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="kvasir-"))  # mode 0700: no other user can reach the socket
        return f"ipc://{self._folder / 'engine'}"

    @property
    def pid(self) -> int:
        """Of the engine, once started."""
        return self._started.pid

    def begin(self) -> None:
        """Start the process, which imports torch before it reads what to serve: that takes a second or two.

        Needs no event loop, so that it can be done before this process imports what it needs itself.
        """
        if self._process is None:
            self.began_s = time.monotonic()
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)

    async def start(self, model: str, options: dict[str, Any]) -> None:
        """Start the process, unless begin() did, and send it what to serve."""
        self.begin()
        launch = EngineArgs(address=self.address, model=model, options=options)
        await asyncio.to_thread(self._send, msgspec.json.encode(launch) + b"\n")

    async def wait(self) -> str:
        """Wait until the process ends; one line about how it ended."""
        process, loop = self._started, asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def resolve(code: int) -> None:
            if not ended.done():
                ended.set_result(code)

        def watch() -> None:
            code = process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(resolve, code)

        threading.Thread(target=watch, daemon=True, name="engine-end").start()
        code = await ended
        if code < 0:
            return f"the engine process was killed by {_signal_name(-code)}"
        return f"the engine process ended with code {code}"

    @property
    def is_busy(self) -> bool:
        """Whether one of its threads computes or waits for a processor or a disk; False where there is no /proc."""
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # the thread ended
                if stat.read_bytes().rpartition(b") ")[2][:1] in BUSY_STATES:
                    return True
        return False

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped it, as SIGSTOP does; False where there is no /proc."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b") ")[2][:1] in (b"T", b"t")
        except OSError:  # it has ended
            return False

    def xid_since(self, earliest: float) -> int | None:
        """The Xid that the driver reported last, if that was after this monotonic second."""
        try:
            assert self._folder is not None, "the engine was not started"
            at, xid = (self._folder / XID_NOTE).read_text().split()
            return int(xid) if float(at) >= earliest else None
        except (OSError, ValueError):  # none was reported, or it is being written
            return None

    def kill(self) -> None:
        """End it at once, also one that is stopped; wait() returns then."""
        self._started.kill()

    async def stop(self, *, at_once: bool = False) -> None:
        """End it if it still runs: SIGTERM, then SIGKILL after a few seconds; removes the socket's directory."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill() if at_once else process.terminate()
            try:
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the end.
                async with asyncio.timeout(KILL_AFTER_S):
                    await self.wait()
            except TimeoutError:
                process.kill()
        await asyncio.to_thread(self.abandon)

    def abandon(self) -> None:
        """Kill it if it still runs, without an event loop; removes the socket's directory. May be called again.

        A process that a driver holds does not end for SIGKILL either: it is left after a few seconds.
        """
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(KILL_AFTER_S)
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):  # what was not written is of no use any more
                    self._process.stdin.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the engine was not started"
        return self._process

    def _send(self, line: bytes) -> None:
        stdin = self._started.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):  # it died already: wait() returns how
            stdin.write(line)
            stdin.flush()


def _signal_name(number: int) -> str:
    """Real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
