"""Starts and ends the engine process, and keeps the private directory of the socket between the two.

Owned by the server's process. The engine is in a session of its own, so that a ctrl-C in the terminal reaches only the
API process, which decides what happens; it notices our death by the end of its standard input.
"""

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvasir_runtime.wire import Launch

ENGINE_COMMAND = (sys.executable, "-m", "kvasir_runtime.engine_main")
KILL_AFTER_S = 5.0


class EngineChild:
    """One engine process. command: program and arguments, replaced by tests."""

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        self._command = tuple(command)
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Where the engine's socket is, in a directory that is made when it is first asked for."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="kvasir-"))  # mode 0700: nobody else can reach the socket
        return f"ipc://{self._folder / 'engine'}"

    @property
    def pid(self) -> int:
        """Of the engine, once started."""
        assert self._process is not None, "the engine was not started"
        return self._process.pid

    async def start(self, model: str, options: dict[str, Any]) -> None:
        """Start the process and tell it what to serve."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None
        launch = Launch(address=self.address, model=model, options=options)
        with contextlib.suppress(ConnectionError):  # it died already: wait() tells
            self._process.stdin.write(msgspec.json.encode(launch) + b"\n")
            await self._process.stdin.drain()

    async def wait(self) -> str:
        """Waits until the process ends; says how it did."""
        assert self._process is not None, "the engine was not started"
        code = await self._process.wait()
        if code < 0:
            return f"the engine process was killed by {signal.Signals(-code).name}"
        return f"the engine process ended with code {code}"

    async def stop(self, *, at_once: bool = False) -> None:
        """End it if it still runs: ask, then kill after a few seconds; removes the socket's directory."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill() if at_once else process.terminate()
            try:
                await asyncio.wait_for(process.wait(), KILL_AFTER_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
