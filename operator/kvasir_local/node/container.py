"""A running container: starts its shim (`container_shim.py`), signals it, runs commands inside, waits for its end.

Called by `pod_worker`; decides nothing about restarts or status.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvasir_local.node.container_shim import TRY
from kvasir_local.node.rules.container_config import ContainerConfig
from kvasir_local.node.rules.rootfs import Step

LAUNCHER: Final = (sys.executable, "-I", "-S", str(Path(__file__).with_name("container_shim.py")))
START_TIMEOUT_S: Final = 30.0
OUTPUT_LIMIT_BYTES: Final = 1024
NO_NAMESPACES: Final = (
    "the process node cannot create namespaces on this machine: run it as root, or allow unprivileged user namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0); in a container it "
    "needs CAP_SYS_ADMIN"
)


class StartFailedError(Exception):
    """The program could not be started; the message is for the pod's author."""


class Container:
    """One started container. `exited` is set when its last process is gone; `exit_code` is then known."""

    def __init__(
        self, config: ContainerConfig, shim: asyncio.subprocess.Process, pid: int, *, user_namespace: bool
    ) -> None:
        self._config, self._shim, self._pid = config, shim, pid
        self._user_namespace = user_namespace

    @property
    def pid(self) -> int:
        """Process 1 of the container, as the machine counts."""
        return self._pid

    def terminate(self) -> None:
        """Send SIGTERM to the program, as a container engine does: not to its children."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill every process of the container."""
        self._signal(signal.SIGUSR1)

    async def wait(self) -> int:
        """The exit code, once nothing of the container runs any more."""
        code = await self._shim.wait()
        return code if code >= 0 else 128 - code

    async def run(self, command: Sequence[str], *, timeout_s: float) -> tuple[int, str]:
        """Run a command inside. Returns its exit code and the start of its output. TimeoutError when late."""
        order = self._config.enter_order(
            command, pid=self._pid, node_pid=os.getpid(), user_namespace=self._user_namespace
        )
        process = await _spawn(order, stderr=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await asyncio.gather(_head(process.stderr), process.wait())
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            raise
        return process.returncode or 0, output

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._shim.send_signal(number)


async def start(config: ContainerConfig, *, root: Path, steps: Sequence[Step], log: Path) -> Container:
    """Start a container. root: an empty directory, on which its root is mounted privately; log: for its output."""
    root.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    user_namespace = os.geteuid() != 0
    order = config.order(root=str(root), steps=steps, log=str(log), node_pid=os.getpid(), user_namespace=user_namespace)
    shim = await _spawn(order, stderr=None)
    assert shim.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await shim.stdout.readline()
    except TimeoutError:
        shim.kill()
        raise StartFailedError(f"the container was not prepared within {START_TIMEOUT_S:g} s") from None
    answer = json.loads(line) if line else {"error": "its shim died during its preparation"}
    if "error" in answer:
        await shim.wait()
        raise StartFailedError(answer["error"])
    return Container(config, shim, int(answer["pid"]), user_namespace=user_namespace)


async def _spawn(order: dict[str, Any], *, stderr: int | None) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    # Its own session: Ctrl-C at the node's terminal must not reach the pods. The parent must be the main thread, since
    # PR_SET_PDEATHSIG follows the thread that forked.
    process = await asyncio.create_subprocess_exec(
        *LAUNCHER, stdin=pipe, stdout=pipe, stderr=stderr, start_new_session=True
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(json.dumps(order).encode())
        await process.stdin.drain()
    process.stdin.close()
    return process


async def _head(stream: asyncio.StreamReader | None) -> str:
    """The first bytes of a stream; the rest is read and dropped so that the writer never blocks."""
    kept = b""
    while stream is not None and (part := await stream.read(4096)):
        kept += part[: OUTPUT_LIMIT_BYTES - len(kept)]
    return kept.decode(errors="replace").strip()


def check_machine() -> str:
    """Why this machine does not allow namespaces and mounts in them; empty when it does."""
    tried = subprocess.run([*LAUNCHER, TRY], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return f"{NO_NAMESPACES} ({tried.stderr.strip()})" if tried.returncode else ""
